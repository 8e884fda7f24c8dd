//! The good program: it makes transfers, one after the other, from the far front to the near one.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use wave_posix::{Listener, Options, Toe};

use crate::agent::{Agent, FAR, NEAR, wait_for};

/// Port where the good program listens at the near front, and port of its sink for hostile programs at the far one.
pub const PORT: u16 = 7_000;
pub const SINK: u16 = 7_001;
/// Bytes of a transfer: more than a ring, so that positions wrap around.
const BYTES: usize = 300_000;

pub struct Good {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

/// Attaches, with small rings.
fn toe(path: PathBuf, payload_bytes: u64) -> Toe {
    let options = Options {
        payload_bytes,
        receive_bytes: 128 << 10,
        send_bytes: 128 << 10,
        ..Options::default()
    };
    Toe::connect_with(path, &options).unwrap()
}

fn pattern(number: u64) -> Vec<u8> {
    (0..BYTES as u64)
        .map(|at| ((at + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// Sends the transfers of these numbers.
fn send(path: PathBuf, numbers: &Receiver<u64>) {
    // One window for all transfers: an agent without descriptors accepts no other.
    let far = toe(path, 16 << 20);
    for number in numbers {
        let mut stream = far.connect_stream(SocketAddr::from((NEAR, PORT)), None).unwrap();
        stream.write_all(&pattern(number)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut end = Vec::new();
        stream.read_to_end(&mut end).unwrap();
        assert_eq!(end, b"all");
    }
}

/// Receives a transfer, checks it, and confirms it.
fn take(near: &Toe, listener: &Listener, number: u64) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got == pattern(number), "transfer {number} is wrong, with {} bytes", got.len());
    stream.write_all(b"all").unwrap();
    drop(stream);
    near.flush();
}

/// Reads from all connections to the far front, and closes those that have ended.
fn sink(path: PathBuf, listens: &Sender<()>, is_over: &AtomicBool) {
    let far = toe(path, 1 << 30);
    let listener = far.listen(SocketAddr::from((FAR, SINK)), 64).unwrap();
    listens.send(()).unwrap();
    listener.set_nonblocking(true);
    let mut streams = Vec::new();
    while !is_over.load(SeqCst) {
        let _ = far.wait_ready(Some(std::time::Duration::from_millis(10)));
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true);
            streams.push(stream);
        }
        let mut bytes = [0; 16 << 10];
        streams.retain_mut(|stream| match stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        });
    }
}

impl Good {
    /// Starts, and waits for the first transfers.
    pub fn start(agent: &Agent) -> Good {
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (near, far) = (agent.near(), agent.far());
        let (begin, numbers) = channel();
        let path = far.clone();
        let sender = std::thread::spawn(move || send(path, &numbers));
        let (over, counted) = (is_over.clone(), done.clone());
        let taker = std::thread::spawn(move || {
            let near = toe(near, 16 << 20);
            let listener = near.listen(SocketAddr::from((NEAR, PORT)), 8).unwrap();
            while !over.load(SeqCst) {
                let number = counted.load(SeqCst);
                begin.send(number).unwrap();
                take(&near, &listener, number);
                counted.fetch_add(1, SeqCst);
            }
        });
        let (over, (listens, listening)) = (is_over.clone(), channel());
        let sink = std::thread::spawn(move || sink(far, &listens, &over));
        // Attacks connect to the sink.
        listening.recv().unwrap();
        let good = Good { is_over, done, threads: vec![sender, taker, sink] };
        good.goes_on();
        good
    }

    /// Waits for two more transfers: one of them lies entirely after this call.
    fn goes_on(&self) {
        let before = self.done.load(SeqCst);
        wait_for("a transfer goes on", || {
            let is_alive = self.threads.iter().all(|thread| !thread.is_finished());
            assert!(is_alive, "the good program has failed");
            self.done.load(SeqCst) >= before + 2
        });
    }

    /// Expects that transfers still succeed, without an error so far.
    pub fn finish(mut self) {
        self.goes_on();
        self.is_over.store(true, SeqCst);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}
