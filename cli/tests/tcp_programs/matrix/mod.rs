//! The matrix of programs: each behaves over the agent as over Linux. A session has the same transcript. A kill -9 ends connections in
//! the same way, and the next process gets the port at once. Many connections are open at once, and each of them exchanges bytes.
//!
//! `WAVE_CONNECTIONS` sets the number of connections, 100 by default; memcached gets ten times as many. `make soak` has 1,000.

mod arrangements;
mod clients;
mod ftp;
mod git;
mod http;
mod laminar;
mod postgresql;
mod rsync;
mod servers;
mod shells;
mod ssh;
mod transcript;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use wave_skip::skip;

use crate::network::{
    AGENT, LINUX, PATIENCE, Running, Up, connect, has, in_a_network, within_patience,
};
use transcript::Transcript;

/// Default number of connections open at once; `WAVE_CONNECTIONS` overrides it.
const CONNECTIONS: usize = 100;
/// Number of threads that open them.
const OPENERS: usize = 4;
/// Number of idle connections whose ends are compared after a kill.
const IDLE: usize = 5;
/// Number of descriptors that a test needs besides those of its connections.
const OTHER_DESCRIPTORS: usize = 500;

/// A row of the matrix: a server and its checks.
struct Program {
    path: &'static str,
    /// Debian's package.
    package: &'static str,
    /// The user to run it as, if not root.
    user: Option<&'static str>,
    port: u16,
    /// Writes the program's files, and returns its arguments.
    prepare: fn(&Site) -> Vec<String>,
    /// Waits until the server answers, for servers that accept connections before they can.
    ready: fn(&Site),
    session: fn(&Site, &mut Transcript),
    /// Exchanges bytes over one of many connections.
    exchange: fn(&Site, &mut TcpStream, Turn) -> io::Result<()>,
    /// Offset of these connections' port from the program's first port.
    exchange_port: u16,
    /// Factor by which to multiply the number of connections.
    times: usize,
}

/// Default values for a row.
const USUAL: Program = Program {
    path: "",
    package: "",
    user: None,
    port: 0,
    prepare: |_| Vec::new(),
    ready: |_| (),
    session: |_, _| (),
    exchange: |_, _, _| Ok(()),
    exchange_port: 0,
    times: 1,
};

/// Number of a connection, and of an exchange over it.
#[derive(Clone, Copy)]
struct Turn {
    connection: usize,
    round: usize,
}

/// Place where a program runs: over the agent or over Linux, in its own folder.
struct Site<'a> {
    up: &'a Up,
    is_over: bool,
    folder: PathBuf,
    port: u16,
    /// Number of connections to open at once.
    connections: usize,
}

impl<'a> Site<'a> {
    fn new(up: &'a Up, is_over: bool, port: u16, connections: usize) -> Site<'a> {
        let folder = up.path(if is_over { "over" } else { "linux" });
        fs::create_dir_all(&folder).unwrap();
        Site { up, is_over, folder, port, connections }
    }

    fn ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(if self.is_over { AGENT } else { LINUX })
    }

    /// The address at offset `more` from the program's first port.
    fn at(&self, more: u16) -> SocketAddr {
        SocketAddr::new(self.ip().into(), self.port + more)
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        fs::write(self.folder.join(name), text).unwrap();
        self.file(name)
    }

    /// The command that runs these words at this site, as this user.
    fn command(&self, words: &[String], user: Option<&str>) -> Command {
        let over: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut all: Vec<String> = match self.is_over {
            true => {
                let command = self.up.over(&over);
                let words = [command.get_program()].into_iter().chain(command.get_args());
                words.map(|word| word.to_str().unwrap().to_owned()).collect()
            }
            false => words.to_vec(),
        };
        if let Some(user) = user {
            let ids = [format!("--reuid={user}"), format!("--regid={user}")];
            let setpriv = ["setpriv".to_owned(), "--init-groups".to_owned()];
            all = setpriv.into_iter().chain(ids).chain(all).collect();
        }
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    /// Starts a program, and waits until it accepts connections.
    fn start(&self, program: &Program, words: &[String]) -> Tree {
        let log = self.up.path(if self.is_over { "over.log" } else { "linux.log" });
        let output = || File::options().create(true).append(true).open(&log).unwrap();
        let mut command = self.command(words, program.user);
        let child = command.stdout(output()).stderr(output()).spawn().unwrap();
        let mut tree = Tree(Running(child));
        within_patience("a server that accepts connections", || {
            if let Some(status) = tree.0.0.try_wait().unwrap() {
                panic!("{words:?} has ended: {status}: {}", fs::read_to_string(&log).unwrap());
            }
            TcpStream::connect_timeout(&self.at(0), PATIENCE).ok()
        });
        (program.ready)(self);
        tree
    }
}

/// A process, killed with all its descendants.
struct Tree(Running);

impl Tree {
    /// Sends SIGKILL to all of them, on drop.
    fn kill(self) {}
}

impl Drop for Tree {
    fn drop(&mut self) {
        let mut found = vec![self.0.0.id()];
        let mut at = 0;
        // Stopped first, so that none of them forks meanwhile.
        while at < found.len() {
            let pid = Pid::from_raw(found[at] as i32).unwrap();
            let _ = kill_process(pid, Signal::STOP);
            let tasks = fs::read_dir(format!("/proc/{}/task", found[at])).into_iter().flatten();
            for task in tasks.flatten() {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
            at += 1;
        }
        for pid in &found {
            let _ = kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL);
        }
        let _ = self.0.0.wait();
        // The port is free only after that, over Linux as well.
        within_patience("the end of the program's processes", || {
            let is_dead = |pid: &u32| {
                let about = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                about.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
            };
            found.iter().all(is_dead).then_some(())
        });
    }
}

/// The number of connections from the environment, or the default.
fn connections() -> usize {
    let asked = std::env::var("WAVE_CONNECTIONS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(CONNECTIONS)
}

/// Raises the limit of descriptors for this many connections. If that is not possible, reports a skip and returns false.
fn has_descriptors(connections: usize) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(usize::MAX, |most| most as usize);
    let is_enough = connections + OTHER_DESCRIPTORS <= most;
    match is_enough {
        true => setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap(),
        false => skip(format!("{connections} connections need more descriptors than {most}")),
    }
    is_enough
}

/// Runs a row.
fn run(program: &'static Program) {
    in_a_network(move || {
        if !has(program.path, program.package) {
            return;
        }
        let count = connections() * program.times;
        if !has_descriptors(count) {
            return;
        }
        let up = match program.user {
            Some(user) => Up::allowing(&id_of(user)),
            None => Up::new(),
        };
        let sites = [false, true].map(|is_over| Site::new(&up, is_over, program.port, count));
        let words = sites.each_ref().map(|site| (program.prepare)(site));
        let outcomes = [0, 1].map(|at| {
            let (site, words) = (&sites[at], &words[at]);
            let server = site.start(program, words);
            let mut first = Transcript::new();
            (program.session)(site, &mut first);
            let idle: Vec<TcpStream> = (0..IDLE)
                .map(|connection| {
                    let mut stream = connect(site.at(program.exchange_port));
                    let turn = Turn { connection, round: 0 };
                    (program.exchange)(site, &mut stream, turn).unwrap();
                    stream
                })
                .collect();
            server.kill();
            // Nobody waits for the end of the server's children.
            within_patience("the end of the listener", || {
                TcpStream::connect_timeout(&site.at(0), PATIENCE).is_err().then_some(())
            });
            let server = site.start(program, words);
            let ends: Vec<_> = idle.into_iter().map(ending).collect();
            let mut second = Transcript::new();
            (program.session)(site, &mut second);
            first.expect(&second, "before and after a kill");
            (server, first, ends)
        });
        let [(_linux, theirs, their_ends), (_over, ours, our_ends)] = outcomes;
        theirs.expect(&ours, "over Linux and over the agent");
        assert_eq!(their_ends, our_ends, "ends of idle connections, over Linux and over the agent");
        // These connections went over the agent.
        up.awaits("PassiveOpens", IDLE as u64);
        exchange_at_once(&sites[1], program, count);
    });
}

fn id_of(user: &str) -> String {
    let id = Command::new("id").args(["-u", user]).output().unwrap();
    String::from_utf8(id.stdout).unwrap().trim().to_owned()
}

/// The end of a connection after its server was killed: the number of bytes still received, and the error.
fn ending(mut stream: TcpStream) -> (usize, Option<io::ErrorKind>) {
    let mut rest = Vec::new();
    let end = stream.read_to_end(&mut rest);
    (rest.len(), end.err().map(|error| error.kind()))
}

/// Opens `count` connections with an exchange over each, and another exchange over each once all are open.
fn exchange_at_once(site: &Site, program: &Program, count: usize) {
    let all_are_open = Barrier::new(OPENERS);
    thread::scope(|scope| {
        for opener in 0..OPENERS {
            let all_are_open = &all_are_open;
            scope.spawn(move || {
                let mut open = Vec::new();
                let mut failed = None;
                for connection in (opener..count).step_by(OPENERS) {
                    let mut stream = connect(site.at(program.exchange_port));
                    let turn = Turn { connection, round: 0 };
                    if let Err(error) = (program.exchange)(site, &mut stream, turn) {
                        failed = Some(format!("connection {connection} of {count}: {error}"));
                        break;
                    }
                    open.push((connection, stream));
                }
                // Otherwise the other threads would wait forever.
                all_are_open.wait();
                assert_eq!(failed, None);
                for (connection, stream) in &mut open {
                    let turn = Turn { connection: *connection, round: 1 };
                    let exchanged = (program.exchange)(site, stream, turn);
                    exchanged.unwrap_or_else(|error| panic!("{connection} again: {error}"));
                }
                all_are_open.wait();
            });
        }
    });
    println!("{}: {count} connections at once", program.path);
}

/// Sends a request over a connection, and compares the answer.
fn expect(stream: &mut TcpStream, request: &[u8], answer: &[u8]) -> io::Result<()> {
    stream.write_all(request)?;
    let mut got = vec![0; answer.len()];
    stream.read_exact(&mut got)?;
    let is_same = got == answer;
    assert!(is_same, "{} for {}", String::from_utf8_lossy(&got), String::from_utf8_lossy(answer));
    Ok(())
}
