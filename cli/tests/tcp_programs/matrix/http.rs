//! HTTP: requests that servers answer, and a server on Linux for proxies and clients.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::matrix::transcript::{Transcript, mask_lines};
use crate::matrix::{Site, Turn};
use crate::network::PATIENCE;

/// Sizes of the files in a server's folder; each file is named after its size.
const SIZES: [usize; 4] = [1, 1_000, 100_000, 3_000_000];

pub fn body(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// A folder with files. Both sites share it, so that the files' dates are equal.
pub fn files(site: &Site) -> String {
    let root = site.up.path("www");
    if !root.exists() {
        fs::create_dir_all(root.join("folder")).unwrap();
        for bytes in SIZES {
            fs::write(root.join(bytes.to_string()), body(bytes)).unwrap();
        }
    }
    root.to_str().unwrap().to_owned()
}

/// Masks the parts that differ from run to run.
pub fn mask(said: &[u8]) -> Vec<u8> {
    mask_lines(said, "Date:")
}

/// Sends requests to a server of [`files`], many of them invalid.
pub fn ask_for_files(site: &Site, transcript: &mut Transcript) {
    let close = "Host: h\r\nConnection: close\r\n";
    let mut requests: Vec<String> = SIZES
        .iter()
        .map(|bytes| format!("GET /{bytes} HTTP/1.1\r\n{close}\r\n"))
        .chain(SIZES.iter().map(|bytes| format!("GET /{bytes} HTTP/1.0\r\n\r\n")))
        .collect();
    let all: String =
        SIZES.iter().map(|bytes| format!("GET /{bytes} HTTP/1.1\r\nHost: h\r\n\r\n")).collect();
    let last = format!("GET /1 HTTP/1.1\r\n{close}\r\n");
    requests.extend([
        // Several pipelined on one connection.
        format!("{all}{all}{last}"),
        format!("HEAD /100000 HTTP/1.1\r\n{close}\r\n"),
        format!("GET /100000 HTTP/1.1\r\nRange: bytes=5000-60000\r\n{close}\r\n"),
        format!("GET /100000 HTTP/1.1\r\nRange: bytes=-10\r\n{close}\r\n"),
        format!("GET /nothing HTTP/1.1\r\n{close}\r\n"),
        // The answer names the server's own address.
        "GET /folder HTTP/1.0\r\n\r\n".to_owned(),
        format!("POST /1 HTTP/1.1\r\nContent-Length: 200000\r\n{close}\r\n{}", "p".repeat(200_000)),
        format!("NONSENSE /1 HTTP/1.1\r\n{close}\r\n"),
        "GET /1 HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
        "\0\x01\x02 no HTTP\r\n\r\n".to_owned(),
        format!("GET /1 HTTP/1.1\r\nX: {}\r\n{close}\r\n", "x".repeat(3_000)),
    ]);
    for request in requests {
        transcript.ask(site, 0, request.as_bytes(), mask);
    }
}

/// Fetches one of [`files`] over a connection that stays open.
pub fn exchange(_: &Site, stream: &mut TcpStream, turn: Turn) -> io::Result<()> {
    let bytes = SIZES[(turn.connection + turn.round) % 2];
    write!(stream, "GET /{bytes} HTTP/1.1\r\nHost: h\r\n\r\n")?;
    let (head, got) = answer(&mut BufReader::new(stream))?;
    assert!(head.contains(" 200 ") && got == body(bytes), "{} bytes: {head}", got.len());
    Ok(())
}

/// Reads the head and the body of an answer. No bytes may follow it.
fn answer(stream: &mut impl BufRead) -> io::Result<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut body = vec![0; length(&head)];
    stream.read_exact(&mut body)?;
    Ok((head, body))
}

fn length(head: &str) -> usize {
    let head = head.to_lowercase();
    let found = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    found.map_or(0, |text| text.trim().parse().unwrap())
}

/// A server on Linux, in threads that end with the test. It answers `/N` with N bytes, `/hold/N` likewise but only once `held` such
/// requests have arrived, and posts with their own bytes.
pub fn serve(at: SocketAddr, held: usize) {
    let listener = TcpListener::bind(at).unwrap();
    let hold = Arc::new((Mutex::new(0), Condvar::new()));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), hold) = (stream, Arc::clone(&hold)) else { return };
            let handler = move || {
                let _ = serve_one(&stream, &hold, held);
            };
            thread::Builder::new().stack_size(256 << 10).spawn(handler).unwrap();
        }
    });
}

fn serve_one(stream: &TcpStream, hold: &(Mutex<usize>, Condvar), held: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut requests = BufReader::new(stream);
    loop {
        let (head, posted) = answer(&mut requests)?;
        let path = head.split(' ').nth(1).unwrap_or("").trim_start_matches('/');
        let (status, body) = match path.split_once('/') {
            _ if head.starts_with("POST") || head.starts_with("PUT") => ("200 OK", posted),
            Some(("hold", bytes)) => {
                let mut count = hold.0.lock().unwrap();
                *count += 1;
                hold.1.notify_all();
                while *count < held {
                    let (next, late) = hold.1.wait_timeout(count, PATIENCE).unwrap();
                    count = next;
                    if late.timed_out() {
                        return Ok(());
                    }
                }
                ("200 OK", body(bytes.parse().unwrap_or(0)))
            }
            Some(("moved", to)) => {
                write!(&*stream, "HTTP/1.1 302 Found\r\nLocation: /{to}\r\n")?;
                ("", Vec::new())
            }
            _ => match path.parse() {
                Ok(bytes) => ("200 OK", body(bytes)),
                Err(_) => ("404 Not Found", b"nothing\n".to_vec()),
            },
        };
        let status =
            if status.is_empty() { String::new() } else { format!("HTTP/1.1 {status}\r\n") };
        write!(&*stream, "{status}Content-Length: {}\r\n\r\n", body.len())?;
        if !head.starts_with("HEAD") {
            (&*stream).write_all(&body)?;
        }
        if head.to_lowercase().contains("connection: close") || head.contains("HTTP/1.0\r\n") {
            return stream.shutdown(std::net::Shutdown::Write);
        }
    }
}

/// Exchanges echoed bytes over a connection that stays open.
pub fn echo(_: &Site, stream: &mut TcpStream, turn: Turn) -> io::Result<()> {
    let sent = body(1 + (turn.connection * 7 + turn.round) % 5_000);
    crate::matrix::expect(stream, &sent, &sent)
}

/// Requests echoes of several sizes, over connections whose client shuts down its direction.
pub fn ask_for_echoes(site: &Site, more: u16, transcript: &mut Transcript) {
    for bytes in [0, 1, 5_000, 1_000_000] {
        let sent = body(bytes);
        let mut stream = crate::network::connect(site.at(more));
        let mut writer = stream.try_clone().unwrap();
        let mut got = Vec::new();
        thread::scope(|scope| {
            let sent = &sent;
            scope.spawn(move || {
                writer.write_all(sent).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            stream.read_to_end(&mut got).unwrap();
        });
        transcript.add(&format!("echo of {bytes}"), &got);
    }
}
