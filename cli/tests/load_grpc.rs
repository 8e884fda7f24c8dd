//! `wave load grpc` against `wave serve kv`, from the command line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wave_workloads::recorder::decode;

fn wave(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A server that is ended with the test.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start() -> Served {
        let mut child = wave("serve kv --on-host --listen 127.0.0.1:0 --keys 1000 --json")
            .spawn()
            .expect("wave can be run");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        Served { child, address: told["address"].as_str().unwrap().to_owned() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn load(&self, line: &str) -> Command {
        load(&self.address, line)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(address: &str, line: &str) -> Command {
    wave(&format!("load grpc --target {address} --keys 1000 --json {line}"))
}

/// Relays connections to `server` and counts the bytes of requests, which shows the progress of a load. Ends with the connections.
fn relay(server: &str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, server) = (listener.local_addr().unwrap().to_string(), server.to_owned());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let counted = Arc::clone(&counted);
            thread::spawn(move || {
                pass_on(client, server, |bytes| {
                    counted.fetch_add(bytes, Ordering::SeqCst);
                })
            });
            thread::spawn(move || pass_on(back.0, back.1, |_| ()));
        }
    });
    (address, asked)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, count: impl Fn(usize)) {
    to.set_nodelay(true).unwrap();
    let mut bytes = [0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
        count(read);
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

/// A generator that waits for a reply before its next call, or counts latency from sending, would show about ten slow calls:
/// one per connection or stream.
#[test]
fn stopped_server_delays_every_call_due_meanwhile() {
    const RATE: f64 = 1_000.0;
    const SLOW: Duration = Duration::from_millis(50);
    let served = Served::start();
    let (address, asked) = relay(&served.address);
    let load = load(&address, "--rate 1000 --seconds 5 --warm-up 0").spawn().unwrap();
    // Some hundreds of calls. The whole load takes five seconds.
    while asked.load(Ordering::SeqCst) < 20_000 {
        thread::sleep(Duration::from_millis(1));
    }
    served.signal(Signal::STOP);
    let stopped = Instant::now();
    thread::sleep(Duration::from_millis(500));
    // The server may be stopped for longer, if this thread waits for a CPU, but not for less.
    let stopped = stopped.elapsed();
    served.signal(Signal::CONT);
    let told = object(&load.wait_with_output().unwrap());
    let result = &told["result"];
    let class = &result["point"]["classes"][0];
    let latencies = decode(class["histogram"].as_str().unwrap()).unwrap();
    let sent = result["point"]["sent"].as_u64().unwrap();
    assert_eq!(result["answers"]["statuses"], serde_json::json!([["OK", sent]]));
    assert!((4_500..5_500).contains(&sent), "{sent} calls; a Poisson process of mean 5,000");
    let slow = latencies.count_between(SLOW.as_nanos() as u64, u64::MAX / 2) as f64;
    // Calls due until SLOW before the server continues: about 450, less five standard deviations of a Poisson process. A busy
    // machine may delay other calls as well.
    let expected = RATE * (stopped - SLOW).as_secs_f64();
    assert!(slow > expected - 5.0 * expected.sqrt(), "{slow} of {sent}, expected {expected}");
    assert!(latencies.max() as u128 > stopped.as_nanos() * 9 / 10, "{}", latencies.max());
}

#[test]
fn closed_loop_counts_every_reply_and_an_ended_server_is_reported() {
    let mut served = Served::start();
    let line = "--closed --connections 2 --streams 4 --seconds 0.3 --warm-up 0 --mix echo=3,get=1";
    let output = served.load(line).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = object(&output);
    assert_eq!(told["loop"], "closed");
    let done = told["result"]["done"].as_u64().unwrap();
    assert!(done >= 8);
    assert_eq!(told["result"]["answers"]["statuses"], serde_json::json!([["OK", done]]));
    served.signal(Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    let output = served.load("--rate 10 --seconds 1").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty() && text.contains("is a server listening there?"), "{text}");
}

#[test]
fn wrong_or_missing_replies_fail_the_load() {
    let served = Served::start();
    for (line, why) in [
        ("--keys 1000000000000 --mix get=1", "no call ended with OK"),
        ("--keys 2000 --mix range=1", "replies were wrong"),
    ] {
        let address = &served.address;
        let line = format!("load grpc --target {address} --rate 100 --seconds 0.5 --json {line}");
        let output = wave(&line).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(why), "{text}");
        assert_eq!(object(&output)["load"], "grpc");
    }
}
