//! `replay`: feeds a log to a policy again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use wave_agent::Registry;
use wave_agent::panics::caught;
use wave_core::log::{Ended, Header, LogReader};
use wave_core::replay::{Difference, Output, Replay, Tally};
use wave_core::subsystem::{Show, Shown};

use wave_terminal::{Failure, counted, note, out, program};

/// Arguments of `replay`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave run scenarios/rocksdb-fifo.toml --record /tmp/logs
  wave replay /tmp/logs/offload-pcie-like-link.wavelog
  wave replay /tmp/logs/offload-pcie-like-link.wavelog --json

The same inputs must give the same decisions, preemptions and notes, one by one. With --policy, another
policy decides in the same circumstances; a difference is no failure then. That policy hears the outcomes
of the recorded decisions, not of its own: once the two leave different numbers of decisions in cores'
queues, the counts of differences mean little.

Exit codes: 0 identical, or another policy; 1 not identical; 2 a bad log, or no such policy.")]
pub struct ReplayArgs {
    /// Log written by an agent (`--record`).
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Compare this policy with the recorded one.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Replays the log, prints the differences, and returns the exit code.
pub fn execute(registry: &Registry, args: &ReplayArgs) -> ExitCode {
    let done = caught(|| perform(registry, args));
    match done
        .unwrap_or_else(|panic| Err(Failure::Check(format!("{}: {panic}", args.log.display()))))
    {
        Ok(code) => code,
        Err(failure) => {
            note!("{} replay: {failure}", program());
            ExitCode::from(failure.exit_code())
        }
    }
}

fn perform(registry: &Registry, args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let bad = |error: &dyn std::fmt::Display| {
        Failure::Scenario(format!("{}: {error}", args.log.display()))
    };
    let bytes = std::fs::read(&args.log).map_err(|error| bad(&error))?;
    let mut reader = LogReader::new(&bytes).map_err(|error| bad(&error))?;
    let header = reader.header().clone();
    let name = args.policy.as_ref().unwrap_or(&header.policy);
    let policy = registry.make(name, &header.config).map_err(|error| bad(&error))?;
    let subsystem = registry.subsystem(header.config.subsystem);
    let show = subsystem.map_or(Show::PLAIN, |subsystem| subsystem.show);
    let mut replay = Replay::new(&header.config, policy);
    for record in reader.by_ref() {
        replay.feed(&record.map_err(|error| bad(&error))?);
    }
    let tally = replay.finish();
    let truncated = matches!(reader.ended(), Some(Ended::Truncated { .. }));
    if args.json {
        out!("{}", to_json(&header, &show, name, &tally, truncated));
    } else {
        wave_terminal::print(format_args!("{}", to_text(&header, &show, name, &tally, truncated)));
    }
    let failed = *name == header.policy && !tally.is_identical();
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn to_text(header: &Header, show: &Show, policy: &str, tally: &Tally, truncated: bool) -> String {
    let Tally { decisions, preemptions, notes, identical, .. } = tally;
    let about = if header.about.is_empty() { "a log" } else { &header.about };
    let cores = counted(header.config.cores, "core");
    let whose = match &header.policy {
        recorded if recorded == policy => format!("policy {policy}"),
        recorded => format!("policy {policy} on a log of policy {recorded}"),
    };
    let mut text = format!("{about}: {whose}, {cores}\n");
    if truncated {
        text.push_str("The log's last record is cut off: its agent was killed.\n");
    }
    let all = decisions + preemptions + notes;
    text.push_str(&format!(
        "{all} outputs recorded ({decisions} decisions, {preemptions} preemptions, {notes} notes), \
         {identical} of them identical\n"
    ));
    let Some(first) = &tally.first else { return text };
    text.push_str(&format!(
        "{policy}: {} alike except for numbers or arguments, {} different, {} missing, {} extra\n",
        tally.alike, tally.different, tally.missing, tally.extra
    ));
    let words = |output: &Option<Output>| {
        output.as_ref().map_or_else(|| "nothing".into(), |output| describe(show, output))
    };
    text.push_str(&format!(
        "First difference: record {}, at {} ns\n  expected {}\n  got      {}\n",
        first.record,
        first.now.0,
        words(&first.expected),
        words(&first.got)
    ));
    text
}

fn describe(show: &Show, output: &Output) -> String {
    match output {
        Output::Decided(core, decision) => {
            let Shown { name, fields } = (show.decision)(decision);
            let fields = fields.iter().map(|(name, value)| format!(", {name} {value}"));
            format!(
                "{name} {} {} gen {} for core {core} (sequence {}, txn {}{})",
                show.subject,
                decision.subject.id,
                decision.subject.generation,
                decision.sequence.0,
                decision.txn.number(),
                fields.collect::<String>()
            )
        }
        Output::Preempted(preemption) => {
            format!("the end of run {} of core {}", preemption.run, preemption.core)
        }
        Output::Noted(note) => {
            format!("a note of kind {} about {} {:?}", note.kind, note.subject.id, note.words)
        }
    }
}

fn to_json(header: &Header, show: &Show, policy: &str, tally: &Tally, truncated: bool) -> Value {
    let first = tally.first.map(|Difference { record, now, expected, got }| {
        json!({
            "record": record,
            "time_ns": now.0,
            "expected": expected.as_ref().map(|output| describe(show, output)),
            "got": got.as_ref().map(|output| describe(show, output)),
        })
    });
    json!({
        "about": header.about,
        "recorded_policy": header.policy,
        "policy": policy,
        "cores": header.config.cores,
        "truncated": truncated,
        "records": tally.records,
        "decisions": tally.decisions,
        "preemptions": tally.preemptions,
        "notes": tally.notes,
        "identical": tally.identical,
        "alike": tally.alike,
        "different": tally.different,
        "missing": tally.missing,
        "extra": tally.extra,
        "first_difference": first,
    })
}

#[cfg(test)]
mod tests {
    use wave_core::log::{LogWriter, Record, What};

    use super::*;
    use crate::trace::tests as logs;

    /// Replays a log from a file, under another policy if one is named.
    fn replay(name: &str, log: &[u8], policy: Option<&str>) -> Result<ExitCode, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let log_path = directory.path().join(name);
        std::fs::write(&log_path, log).unwrap();
        perform(
            &Registry::shipped(),
            &ReplayArgs { log: log_path, policy: policy.map(Into::into), json: true },
        )
    }

    /// The log with one decision changed to another thread.
    fn altered(log: &[u8]) -> Vec<u8> {
        let reader = LogReader::new(log).unwrap();
        let mut bytes = Vec::new();
        let mut writer = LogWriter::new(&reader.header().clone(), |piece: &[u8]| {
            bytes.extend_from_slice(piece);
        });
        let mut records: Vec<Record> = reader.map(Result::unwrap).collect();
        let decided = records.iter_mut().filter_map(|record| match &mut record.what {
            What::Decided { decision, .. } => Some(decision),
            _ => None,
        });
        decided.last().unwrap().subject.id += 1;
        records.iter().for_each(|record| writer.write(record));
        drop(writer);
        bytes
    }

    #[test]
    fn only_the_recorded_policy_must_decide_the_same() {
        let log = logs::log(20);
        assert_eq!(replay("same", &log, None).unwrap(), ExitCode::SUCCESS);
        let altered = altered(&log);
        assert_eq!(replay("altered", &altered, None).unwrap(), ExitCode::from(1));
        assert_eq!(replay("named", &altered, Some("fifo")).unwrap(), ExitCode::from(1));
    }

    #[test]
    fn unusable_log_or_policy_is_refused_with_the_reason() {
        let log = logs::log(10);
        let refusal = |log: &[u8], policy| replay("bad", log, policy).unwrap_err();
        assert_eq!(refusal(b"no log", None).exit_code(), 2);
        assert!(refusal(b"no log", None).to_string().contains("bad: not a log"));
        assert!(refusal(&log, Some("nosuch")).to_string().contains("there is no policy `nosuch`"));
        let damaged = [&log[..], &[0xff; 20]].concat();
        assert!(refusal(&damaged, None).to_string().contains(&format!("byte {}", log.len())));
    }

    #[test]
    fn a_log_replayed_by_another_policy_names_both_policies() {
        let log = logs::log(20);
        let header = LogReader::new(&log).unwrap().header().clone();
        let show = wave_sched::SUBSYSTEM.show;
        let text = to_text(&header, &show, "edf:slack_us=7", &Tally::default(), false);
        assert!(text.contains("policy edf:slack_us=7 on a log of policy fifo, "), "{text}");
    }

    #[test]
    fn a_difference_is_reported_with_both_sides() {
        let log = altered(&logs::log(20));
        let mut reader = LogReader::new(&log).unwrap();
        let header = reader.header().clone();
        let policy = wave_sched::policies::by_name("fifo", &header.config).unwrap();
        let mut replay = Replay::new(&header.config, policy);
        reader.by_ref().for_each(|record| replay.feed(&record.unwrap()));
        let tally = replay.finish();
        let show = wave_sched::SUBSYSTEM.show;
        let text = to_text(&header, &show, "fifo", &tally, false);
        assert!(text.contains(": policy fifo, "), "{text}");
        assert!(text.contains("1 different, 0 missing, 0 extra"), "{text}");
        assert!(
            text.contains("expected RUN thread ") && text.contains("got      RUN thread "),
            "{text}"
        );
        let json = to_json(&header, &show, "fifo", &tally, false);
        assert_eq!(json["identical"].as_u64().unwrap() + 1, json["decisions"].as_u64().unwrap());
        assert_ne!(json["first_difference"]["expected"], json["first_difference"]["got"]);
        assert_eq!(json["first_difference"]["record"].as_u64(), tally.first.map(|at| at.record));
    }
}
