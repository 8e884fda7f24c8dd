//! Long commands at Ctrl-C: they say what was done so far, and end as the signal would have ended them.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn wave(line: &str) -> Command {
    // A shell starts commands in the background with an ignored SIGINT, and so perhaps this test.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_wave")]);
    command.args(line.split(' ')).stdin(Stdio::null());
    command
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Interrupts the command once it has shown progress. Returns what it then says.
fn interrupted(line: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = wave(line);
    command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    errors.read_line(&mut first).unwrap();
    assert!(!first.is_empty(), "{line}: no progress");
    interrupt(&child);
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{line}: {status}: {rest}");
    rest
}

#[test]
fn interrupted_commands_say_what_was_done_so_far() {
    for (line, words) in [
        ("fuzz --seeds 1000000", " of 1000000 seeds done, "),
        ("fuzz tcp --seeds 1000000", " of 1000000 histories done, "),
        ("tcp executors --seeds 1000000", " of "),
        ("fit", " rounds done; nothing is kept"),
        ("reproduce all", " parts are done and kept"),
    ] {
        let said = interrupted(line);
        assert!(said.contains("interrupted: ") && said.contains(words), "{line}: {said}");
    }
}

#[test]
fn an_interrupted_load_says_how_long_it_ran() {
    let mut serve = wave("serve kv --on-host --listen 127.0.0.1:0 --keys 100 --json");
    let mut server = serve.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = told["address"].as_str().unwrap();
    let load = "load grpc --rate 100 --seconds 1000 --keys 100 --target";
    let said = interrupted(&format!("{load} {address}"));
    assert!(said.contains("interrupted after ") && said.contains("of 1001.0 s"), "{said}");
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
}
