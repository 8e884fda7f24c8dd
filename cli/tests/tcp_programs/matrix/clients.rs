//! Matrix rows for clients, and for programs with their own client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::{Value, json};

use crate::matrix::transcript::Transcript;
use crate::matrix::{Program, Site, Tree, USUAL, connections, has_descriptors, http};
use crate::network::{LINUX, Running, Up, connect, has, in_a_network, within_patience};

const CURL: &str = "/usr/bin/curl";
/// Maximum number of concurrent transfers of one curl.
const TRANSFERS_MAX: usize = 250;
/// Capacity of a pipe in bytes (pipe(7)).
const PIPE_BYTES: u64 = 64 << 10;

fn curl(site: &Site, words: &[&str]) -> Command {
    let words: Vec<String> = [CURL].iter().chain(words).map(|word| (*word).to_owned()).collect();
    let mut command = site.command(&words, None);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
pub(super) fn curl_behaves_over_an_agent_as_over_linux() {
    in_a_network(|| {
        if !has(CURL, "curl") {
            return;
        }
        let count = connections();
        if !has_descriptors(2 * count) {
            return;
        }
        let up = Up::new();
        http::serve(SocketAddr::from((LINUX, 8000)), count);
        let sites = [false, true].map(|is_over| Site::new(&up, is_over, 8000, count));
        let [theirs, ours] = sites.each_ref().map(session);
        theirs.expect(&ours, "over Linux and over the agent");
        sites.iter().for_each(kill_and_go_on);
        up.awaits("ActiveOpens", 10);
        fetch_at_once(&sites[1], count);
    });
}

fn session(site: &Site) -> Transcript {
    let mut transcript = Transcript::new();
    let upload = site.write("upload", http::body(2_000_000));
    let upload = format!("@{upload}");
    let base = "http://10.77.0.1:8000";
    let url = |path: &str| format!("{base}/{path}");
    let urls = [url("1"), url("100000"), url("3000000"), url("nothing"), url("moved/1000")];
    let about = "%{http_code} %{size_download} %{num_connects} %{num_redirects} %{local_ip}\\n";
    let calls: [&[&str]; 8] = [
        &["-w", about, &urls[0], &urls[1], &urls[2], &urls[3]],
        &["-L", "-w", about, &urls[4]],
        &["-I", &urls[1]],
        &["--data-binary", &upload, &urls[0]],
        &["-T", &upload[1..], &urls[0]],
        &["--http1.0", &urls[1], &urls[1]],
        &["--fail", &urls[3]],
        // A port without a listener.
        &["http://10.77.0.1:9/"],
    ];
    for call in calls {
        let output = curl(site, &[&["-sSv"], call].concat()).output().unwrap();
        transcript.add(&format!("{:?}", &call[..1]), &output.stdout);
        let said = String::from_utf8(output.stderr).unwrap();
        // Parts that vary: sizes of single reads, times, and pointers.
        let varies = [" bytes data]", " ms", " 0x"];
        let is_exact = |line: &&str| varies.iter().all(|varying| !line.contains(varying));
        let exact: Vec<&str> = said.lines().filter(is_exact).collect();
        let code = output.status.code();
        transcript.add(&format!("{code:?}"), exact.join("\n").as_bytes());
    }
    transcript
}

/// Kills curl while bytes are unread, so that its connection is reset. The next curl gets the same port at once.
fn kill_and_go_on(site: &Site) {
    let listener = TcpListener::bind(SocketAddr::from((LINUX, 0))).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    for _ in 0..2 {
        let mut running = curl(site, &["-sS", "--local-port", "40000", &url]).spawn().unwrap();
        let (mut stream, peer) = listener.accept().unwrap();
        assert_eq!(peer.port(), 40_000);
        let mut writer = stream.try_clone().unwrap();
        let sends = thread::spawn(move || {
            writer.write_all(b"HTTP/1.0 200 OK\r\n\r\n")?;
            // More than all buffers hold.
            let part = http::body(3_000_000);
            (0..10).try_for_each(|_| writer.write_all(&part))
        });
        // curl's output is not read, so that curl stops reading from the connection.
        let printed = running.stdout.take().unwrap();
        within_patience("a curl that waits", || {
            (rustix::io::ioctl_fionread(&printed).unwrap() >= PIPE_BYTES).then_some(())
        });
        running.kill().unwrap();
        running.wait().unwrap();
        // The FIN may come first, and the reset with the next bytes.
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(sends.join().unwrap().is_err());
    }
}

/// Fetches with several curls. Their server answers once all connections are open.
fn fetch_at_once(site: &Site, count: usize) {
    let part = count.min(TRANSFERS_MAX);
    let each = count / count.div_ceil(part);
    let curls: Vec<Child> = (0..count.div_ceil(part))
        .map(|at| {
            let last = if at == 0 { count - each * (count.div_ceil(part) - 1) } else { each };
            let url = format!("http://10.77.0.1:8000/hold/[1-{last}]");
            let out = site.file(&format!("out-{at}-#1"));
            let most = last.to_string();
            let words = ["-sS", "-Z", "--parallel-immediate", "--parallel-max", &most];
            curl(site, &[&words[..], &["-o", &out, &url]].concat()).spawn().unwrap()
        })
        .collect();
    let mut files = 0;
    for (at, curl) in curls.into_iter().enumerate() {
        let output = curl.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        for bytes in 1.. {
            let Ok(got) = std::fs::read(site.file(&format!("out-{at}-{bytes}"))) else { break };
            assert!(got == http::body(bytes), "{} bytes of {bytes}", got.len());
            files += 1;
        }
    }
    assert_eq!(files, count);
    println!("curl: {count} connections at once");
}

const IPERF3: Program = Program {
    path: "/usr/bin/iperf3",
    package: "iperf3",
    port: 5201,
    prepare: |site| {
        let (ip, port) = (site.ip().to_string(), site.port.to_string());
        [IPERF3.path, "-s", "-B", &ip, "-p", &port].map(str::to_owned).to_vec()
    },
    ..USUAL
};
/// Maximum number of streams of one iperf3, below its own limit of 128.
const STREAMS_MAX: usize = 125;

#[test]
fn iperf3_behaves_over_an_agent_as_over_linux() {
    in_a_network(|| {
        if !has(IPERF3.path, IPERF3.package) {
            return;
        }
        let count = connections();
        let up = Up::new();
        let transcripts = [false, true].map(|is_over| {
            let site = Site::new(&up, is_over, IPERF3.port, count);
            let words = (IPERF3.prepare)(&site);
            let server = site.start(&IPERF3, &words);
            let first = measure(&site);
            // Kill it in the middle of a test.
            let mut client = client(&site, &["-t", "600", "-P", "4"]);
            let mut running = Running(client.spawn().unwrap());
            let mut second = connect(site.at(0));
            // A second client sends its cookie, and the answer says that a test is running.
            second.write_all(&[b'x'; 37]).unwrap();
            let _ = second.read(&mut [0]);
            server.kill();
            running.0.wait().unwrap();
            let _server = site.start(&IPERF3, &words);
            let again = measure(&site);
            first.expect(&again, "before and after a kill");
            first
        });
        let [theirs, ours] = transcripts;
        theirs.expect(&ours, "over Linux and over the agent");
        stream_at_once(&up, count);
    });
}

fn client(site: &Site, words: &[&str]) -> Command {
    let (ip, port) = (site.ip().to_string(), site.port.to_string());
    let mut client = Command::new(IPERF3.path);
    client.args(["-c", &ip, "-p", &port, "--json"]).args(words);
    client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    client
}

/// Runs a test and returns its report. The server accepts one test at a time, and needs a moment between two.
fn report(site: &Site, words: &[&str]) -> Value {
    within_patience("a report", || {
        let report = client(site, words).output().unwrap().stdout;
        let report: Value = serde_json::from_slice(&report).ok()?;
        report["error"].is_null().then_some(report)
    })
}

fn measure(site: &Site) -> Transcript {
    let mut transcript = Transcript::new();
    let calls: [&[&str]; 4] = [
        &["-n", "20M", "-P", "2"],
        &["-n", "20M", "-R"],
        &["-n", "20M", "--bidir", "-N"],
        &["-n", "1M", "-l", "1000", "-M", "1000"],
    ];
    for words in calls {
        let report = report(site, words);
        let bytes = report["end"]["sum_sent"]["bytes"].as_u64();
        assert!(bytes >= Some(1 << 20), "{report}");
        transcript.add(&words.join(" "), shape(&report).to_string().as_bytes());
    }
    transcript
}

/// A report without the parts that differ from run to run: figures, times, and the number of intervals.
fn shape(report: &Value) -> Value {
    match report {
        Value::Object(members) => {
            let exact = ["test_start", "version", "title", "error", "congestion"];
            let masked = ["cookie", "time", "intervals", "system_info", "timestamp"];
            let shaped = members.iter().filter(|(name, _)| !masked.contains(&name.as_str()));
            let shaped = shaped.map(|(name, member)| match exact.contains(&name.as_str()) {
                true => (name.clone(), member.clone()),
                false => (name.clone(), shape(member)),
            });
            Value::Object(shaped.collect())
        }
        Value::Array(members) => members.iter().map(shape).collect(),
        Value::Number(_) => json!(0),
        other => other.clone(),
    }
}

/// Runs the streams of several iperf3s at once.
fn stream_at_once(up: &Up, count: usize) {
    let servers = count.div_ceil(STREAMS_MAX);
    let streams = count.div_ceil(servers);
    let each: Vec<(Site, Tree)> = (0..servers as u16)
        .map(|at| {
            let site = Site::new(up, true, IPERF3.port + 1 + at, count);
            let server = site.start(&IPERF3, &(IPERF3.prepare)(&site));
            (site, server)
        })
        .collect();
    thread::scope(|scope| {
        for (site, _) in &each {
            scope.spawn(move || {
                let streams = streams.to_string();
                let report = report(site, &["-t", "3", "-P", &streams, "-l", "8K"]);
                let found = report["end"]["streams"].as_array().unwrap();
                assert_eq!(found.len().to_string(), streams);
                for stream in found {
                    assert!(stream["sender"]["bytes"].as_u64() > Some(0), "{stream}");
                }
            });
        }
    });
    println!("iperf3: {count} connections at once");
}
