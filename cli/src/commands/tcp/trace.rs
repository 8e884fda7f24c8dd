//! `wave tcp trace`: prints records from a running agent's trace points.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use serde_json::Value;
use wave_front_tcp::{TraceRequest, traces_path};
use wave_process::say;
use wave_process::words::counted;
use wave_tcp::datapaths::DatapathKind;
use wave_tcp::trace::{Point, PointInfo};
use wave_terminal::{Failure, Table, print};

use super::super::set_by_signals;
use super::{AgentArgs, CHECK_EVERY, PATIENCE};

#[derive(Args, Debug)]
#[command(
    after_help = "Trace points are places in the stages of the data path and in the control plane. They are active while a reader is attached; each
prints a line: the agent's time in seconds, stage, point, connection, values. --list names them.
The agent does not wait for a slow reader: lost records are counted, and their number is printed at the end.

Examples:
  wave tcp trace                                    everything, until Ctrl-C
  wave tcp trace --flow 3.1                         one connection; wave tcp ss shows the names
  wave tcp trace --point dropped --point timeout    some points
  wave tcp trace --json --count 1000 > trace.jsonl

Exit codes: 0 success; 2 bad arguments; 3 no agent answers."
)]
pub struct TraceArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// Trace only this connection.
    #[arg(long, value_name = "INDEX.GENERATION", value_parser = flow)]
    flow: Option<(u32, u32)>,
    /// Trace only this point; may be given several times.
    #[arg(long, value_name = "POINT", value_parser = point)]
    point: Vec<String>,
    /// Number of records after which the trace ends [default: until Ctrl-C].
    #[arg(long, value_name = "RECORDS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print each record as a JSON object on one line.
    #[arg(long)]
    json: bool,
    /// List the trace points and exit.
    #[arg(long, exclusive = true)]
    list: bool,
}

fn flow(text: &str) -> Result<(u32, u32), String> {
    let wrong = || "a connection is INDEX.GENERATION, as wave tcp ss shows it".to_owned();
    let (index, generation) = text.split_once('.').ok_or_else(wrong)?;
    index.parse().ok().zip(generation.parse().ok()).ok_or_else(wrong)
}

/// Points of all data paths, and of the control plane. Data paths may share theirs.
fn points() -> impl Iterator<Item = &'static PointInfo> {
    let all = DatapathKind::ALL;
    let is_first = |at: usize| {
        !all[..at].iter().any(|earlier| std::ptr::eq(earlier.points(), all[at].points()))
    };
    let lists = (0..all.len()).filter(move |at| is_first(*at));
    lists.flat_map(|at| all[at].points()).chain(Point::ALL_INFO)
}

fn point(name: &str) -> Result<String, String> {
    let is_known = points().any(|point| point.name == name);
    is_known
        .then(|| name.to_owned())
        .ok_or_else(|| "wave tcp trace --list names the points".to_owned())
}

pub fn trace(args: &TraceArgs) -> Result<(), Failure> {
    if args.list {
        list();
        return Ok(());
    }
    let points = (!args.point.is_empty()).then(|| args.point.clone());
    let door = args.agent.socket();
    let mut lines = Lines::ask(&door, &TraceRequest { flow: args.flow, points })?;
    let mut output = io::stdout().lock();
    let mut records = 0;
    while let Some(line) = lines.next(&mut output)? {
        let object: Value = serde_json::from_str(line)
            .map_err(|_| Failure::cannot(format!("cannot parse the agent's answer: {line:.80}")))?;
        if let Some(lost) = object["lost"].as_u64() {
            say!("{}, {lost} lost", counted(records, "record"));
            return Ok(());
        }
        if object["point"].is_null() || args.count == Some(records) {
            continue;
        }
        records += 1;
        let written = match args.json {
            true => writeln!(output, "{line}"),
            false => writeln!(output, "{}", text(&object)),
        };
        match written {
            Ok(()) => {}
            // The reader of the output has closed the pipe.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::cannot(error)),
        }
        if args.count == Some(records) {
            lines.ends.store(true, Ordering::Relaxed);
        }
    }
    let why = format!("the agent has gone; {}, an unknown number lost", counted(records, "record"));
    Err(Failure::cannot(why))
}

fn list() {
    let mut table = Table::new(4, ["point", "stage", "values", "meaning"]);
    for PointInfo { name, stage, values, about } in points() {
        table.push([name, stage, values.join(" ").trim(), about]);
    }
    print(format_args!("{}\n", table.plain()));
}

/// A record as text.
fn text(object: &Value) -> String {
    let seconds = object["ns"].as_u64().unwrap_or_default() as f64 / 1e9;
    let word = |key: &str| object[key].as_str().unwrap_or("-").to_owned();
    let mut text =
        format!("{seconds:.6} {:<9} {:<20} {:<8}", word("stage"), word("point"), word("flow"));
    for (name, value) in object.as_object().into_iter().flatten() {
        if !["n", "ns", "stage", "point", "flow"].contains(&name.as_str()) {
            text.push_str(&format!(" {name}={value}"));
        }
    }
    text.trim_end().to_owned()
}

/// Reads the lines that an agent sends.
struct Lines {
    reader: BufReader<UnixStream>,
    line: String,
    ends: Arc<AtomicBool>,
    /// When the agent was asked to stop.
    told: Option<Instant>,
}

impl Lines {
    fn ask(door: &Path, request: &TraceRequest) -> Result<Lines, Failure> {
        let path = traces_path(door);
        let reveal = "traces reveal who communicates with whom";
        let json = serde_json::to_string(request).map_err(Failure::cannot)?;
        let (stream, failed) = super::request(&path, &json, reveal)?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        if reader.read_line(&mut line).map_err(&failed)? == 0 {
            return Err(failed(ErrorKind::UnexpectedEof.into()));
        }
        if !line.starts_with('{') {
            return Err(Failure::cannot(line.trim()));
        }
        line.clear();
        reader.get_ref().set_read_timeout(Some(CHECK_EVERY)).map_err(failed)?;
        Ok(Lines { reader, line, ends: set_by_signals()?, told: None })
    }

    /// The next line; `None` at the end. Flushes `output` while waiting for one.
    fn next(&mut self, output: &mut dyn Write) -> Result<Option<&str>, Failure> {
        self.line.clear();
        loop {
            if self.ends.load(Ordering::Relaxed) && self.told.is_none() {
                self.told = Some(Instant::now());
                let _ = self.reader.get_ref().shutdown(Shutdown::Write);
            }
            match self.reader.read_line(&mut self.line) {
                Ok(0) => return Ok(None),
                Ok(_) if self.line.ends_with('\n') => return Ok(Some(self.line.trim_end())),
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // `line` keeps the received part of the line.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if output.flush().is_err()
                        || self.told.is_some_and(|at| at.elapsed() > PATIENCE)
                    {
                        return Ok(None);
                    }
                }
                Err(_) => return Ok(None),
            }
        }
    }
}
