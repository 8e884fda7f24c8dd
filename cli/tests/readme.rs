//! README's commands, one after the other as they stand, as root on two CPUs.
//!
//! They run with mounts and a network of their own, so that `/tmp`, ports and TAP devices are theirs. `target/release` is this
//! build's folder. A command that is new in README fails the test until it is listed here.

#[path = "tcp_programs/library.rs"]
mod library;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use wave_process::cpus;
use wave_skip::skip;

/// How a command is run.
enum Way {
    /// To its end, with exit code 0.
    Ends,
    /// To its end, with exit code 0; or 1 and these words, where other processes disturb it.
    Measures(&'static str),
    /// Until its error output or output has these words; it keeps running beside the commands that follow.
    Serves(&'static str),
    /// Until these words, which come early in a long run. Ctrl-C ends it, and it says so.
    Begins(&'static str),
    /// Named in a sentence: its help is asked for.
    Named,
    /// Not run by this test, for this reason.
    Not(&'static str),
    /// Left out, because this machine lacks what the command needs.
    Lacks(&'static str),
}

use Way::{Begins, Ends, Lacks, Measures, Named, Not, Serves};

/// README's commands in order.
fn ways() -> Vec<(&'static str, Way)> {
    let needs = |has: bool, words, lacks| if has { Serves(words) } else { Lacks(lacks) };
    let has_redis = Path::new("/usr/bin/redis-server").exists();
    let has_zram = Path::new("/sys/class/zram-control").exists();
    let has_sched_ext = has_redis && Path::new("/sys/kernel/sched_ext").exists();
    let swap = needs(has_zram, "resident", "this kernel has no zram");
    let kernel = needs(
        has_sched_ext,
        "scheduling",
        "no sched_ext (Linux 6.13 or later), or no redis-server",
    );
    let redis = needs(has_redis, "Ready to accept", "no redis-server");
    vec![
        ("make demo", Not("it builds in release mode, and runs for a minute")),
        ("make test", Not("this test is a part of it")),
        ("make build", Not("it builds in release mode")),
        ("export PATH=$PWD/target/release:$PATH", Not("the test has set it")),
        ("sudo $(which wave)", Not("a way to write it, not a command")),
        ("wave doctor", Ends),
        ("sudo wave memory run --pid $(pidof my-server) --zram 4GiB", swap),
        ("sudo wave record --out make.workload -- make -j4", Ends),
        ("wave run --host sim --workload make.workload", Ends),
        ("sudo wave run --host linux --policy shinjuku:slice_us=1000 -- redis-server", kernel),
        ("cargo xtask vm run", Not("it boots a virtual machine")),
        ("wave run scenarios/ladder.toml --host sim", Begins("[")),
        ("wave reproduce all", Begins("[")),
        ("cargo run --example hello -p wave-user -- /tmp/hello.sock 60", Serves("")),
        ("wave agent --attach /tmp/hello.sock", Serves("attached to /tmp/hello.sock")),
        ("wave run scenarios/agent-crash.toml", Begins("[")),
        ("wave run scenarios/enclaves.toml", Begins("[")),
        ("wave run scenarios/ladder.toml", Begins("[")),
        ("wave serve kv --offload /tmp/kv.sock", Serves("Serving")),
        ("wave agent --rpc /tmp/kv.sock --udp 127.0.0.1:50052", Serves("steers to 1 worker of")),
        ("wave load udp --target 127.0.0.1:50052 --rate 10000", Measures("not a measurement")),
        ("sudo wave tcp up --tap toe0 --address 10.77.0.2/24", Serves("10.77.0.2")),
        ("sudo wave serve http --toe /run/wave-toe0.sock", Serves("")),
        ("curl http://10.77.0.2/", Ends),
        ("sudo wave tcp run -- redis-server --bind 10.77.0.2 --protected-mode no", redis),
        ("wave rmt trace laminar --table 5.1", Ends),
        ("wave trace", Named),
        ("wave replay", Named),
        ("wave fuzz", Begins("[")),
        ("wave bench", Named),
        ("cargo build --release -p wave-bench", Not("a build")),
        ("wave validate", Begins("] calibrating")),
        ("wave link measure", Ends),
        ("cargo xtask site", Not("it installs mdBook")),
    ]
}

/// Commands in README, in code blocks and between backticks.
fn commands(text: &str) -> Vec<String> {
    let begins = ["wave ", "sudo ", "make ", "cargo ", "curl ", "export "];
    let mut found = Vec::new();
    let mut is_shell = None;
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            is_shell = if is_shell.is_some() { None } else { Some(language == "sh") };
        } else if is_shell == Some(true) {
            found.push(line.split('#').next().unwrap().trim().to_owned());
        } else if is_shell.is_none() {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found.retain(|command| begins.iter().any(|begin| command.starts_with(begin)));
    found
}

#[test]
fn commands_of_readme_run_one_after_the_other_as_they_stand() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let found = commands(&fs::read_to_string(root.join("README.md")).unwrap());
    let ways = ways();
    let mut seen = BTreeSet::new();
    let found: Vec<&String> = found.iter().filter(|command| seen.insert(*command)).collect();
    assert_eq!(found, ways.iter().map(|(command, _)| command).collect::<Vec<_>>());
    if !geteuid().is_root() {
        return skip("a network and mounts of its own need root");
    }
    library::library();
    // A machine has only one swap of Wave's, and a TAP device needs its driver.
    let _turn = wave_skip::turn("swap");
    let named = std::thread::Builder::new().name(std::thread::current().name().unwrap().to_owned());
    let thread = named.spawn(move || match apart() {
        Ok(()) => all(&root, ways),
        Err(error) => skip(format!("no mounts and network for the test: {error}")),
    });
    if let Err(panic) = thread.unwrap().join() {
        std::panic::resume_unwind(panic);
    }
}

/// Gives this thread, and what it starts, two CPUs and mounts and a network of its own.
fn apart() -> Result<(), String> {
    let text = |error: nix::Error| error.to_string();
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).map_err(text)?;
    for line in [
        "mount --make-rprivate /",
        "mount -t tmpfs tmpfs /tmp",
        "mount -t tmpfs tmpfs /run",
        "ip link set lo up",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let done = Command::new(words[0]).args(&words[1..]).status();
        match done {
            Ok(status) if status.success() => {}
            other => return Err(format!("{line}: {other:?}")),
        }
    }
    let allowed = cpus::allowed().map_err(|error| error.to_string())?;
    cpus::pin(&allowed[..allowed.len().min(2)]).map_err(|error| error.to_string())
}

/// A command that keeps running.
struct Running {
    child: Child,
    said: Receiver<String>,
}

impl Running {
    /// Reads until a line has these words. Returns all that was read; at the end of the output, too.
    fn says(&self, words: &str) -> Result<String, String> {
        let mut text = String::new();
        while !text.contains(words) || text.is_empty() {
            match self.said.recv() {
                Ok(line) => text += &line,
                Err(_) => return Err(text),
            }
        }
        Ok(text)
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        // A command that does not end by itself has not failed here: its output was as expected.
        for _ in 0..1_000 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(command: &str, folder: &Path, path: &str) -> Running {
    // Root needs no sudo. `exec`, so that signals reach the command; a shell starts background commands, and so perhaps this test, with
    // an ignored SIGINT.
    let line = command.strip_prefix("sudo ").unwrap_or(command);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("exec env --default-signal=INT {line}")])
        .current_dir(folder)
        .env("PATH", path);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let (say, said) = channel();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let pipes: [Box<dyn Read + Send>; 2] = [Box::new(out), Box::new(err)];
    for pipe in pipes {
        let say = say.clone();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(pipe);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                let _ = say.send(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            }
        });
    }
    Running { child, said }
}

fn all(root: &Path, ways: Vec<(&'static str, Way)>) {
    let wave = Path::new(env!("CARGO_BIN_EXE_wave"));
    let path = format!("{}:{}", wave.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let folder = PathBuf::from("/tmp/wave");
    fs::create_dir(&folder).unwrap();
    for name in ["scenarios", "links", "Cargo.toml"] {
        std::os::unix::fs::symlink(root.join(name), folder.join(name)).unwrap();
    }
    fs::write(folder.join("Makefile"), "all: a b c d\na b c d:\n\t@true\n").unwrap();
    let _server = start(
        "bash -c 'exec -a my-server perl -e \"\\$x = q(a) x 67108864; \\$| = 1; print qq(ready\\n); sleep 1000\"'",
        &folder,
        &path,
    );
    let mut running = Vec::new();
    let mut is_recorded = true;
    for (command, way) in ways {
        println!("$ {command}");
        if command == "wave run --host sim --workload make.workload" && !is_recorded {
            continue;
        }
        if command.starts_with("sudo wave memory") {
            _server.says("ready").unwrap();
        }
        let line = match command.strip_prefix("cargo run --example hello -p wave-user -- ") {
            // As cargo has built it for the tests.
            Some(arguments) => {
                let example = wave.with_file_name("examples").join("hello");
                if !example.exists() {
                    skip(format!("{command}: the example is not built"));
                    continue;
                }
                format!("{} {arguments}", example.display())
            }
            None => command.to_owned(),
        };
        match way {
            Not(why) => println!("not run: {why}"),
            Lacks(what) => {
                skip(format!("{command}: {what}"));
                continue;
            }
            Named => {
                let mut asked = start(&format!("{line} --help"), &folder, &path);
                let text = asked.says("\u{0}").unwrap_err();
                assert!(asked.child.wait().unwrap().success(), "{command} --help: {text}");
            }
            Serves(words) => {
                let serving = start(&line, &folder, &path);
                if let Err(text) = serving.says(words) {
                    panic!("{command}: {text}");
                }
                let is_done = command.contains("--zram") || command.contains("--host linux");
                if !is_done {
                    running.push(serving);
                }
            }
            Begins(words) => {
                let mut begun = start(&line, &folder, &path);
                let said = begun.says(words).unwrap_or_else(|text| panic!("{command}: {text}"));
                begun.signal(Signal::INT);
                let rest = begun.says("\u{0}").unwrap_err();
                begun.child.wait().unwrap();
                let is_done = rest.contains("interrupted") || rest.contains("done");
                assert!(is_done, "{command}: {said}{rest}");
            }
            Ends | Measures(_) => {
                let mut done = start(&line, &folder, &path);
                let text = done.says("\u{0}").unwrap_err();
                let code = done.child.wait().unwrap().code();
                if command.starts_with("sudo wave record") && code == Some(3) {
                    skip(format!("{command}: {text}"));
                    is_recorded = false;
                    continue;
                }
                let is_disturbed = match way {
                    Measures(words) => code == Some(1) && text.contains(words),
                    _ => false,
                };
                assert!(code == Some(0) || is_disturbed, "{command}: {code:?}: {text}");
            }
        }
        if command.contains("redis-server --bind") {
            answers_pong("10.77.0.2:6379");
        }
    }
    // The last ones first: an agent's programs before the agent.
    while running.pop().is_some() {}
}

/// A new user's redis answered DENIED.
fn answers_pong(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n", "{}", String::from_utf8_lossy(&answer));
}
