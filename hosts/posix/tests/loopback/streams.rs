//! Bytes on streams, compared with a simple model of a pipe.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Seek, Write};
use std::net::Shutdown;
use std::sync::LazyLock;

use crate::agent::Agent;
use proptest::collection::vec;
use proptest::prelude::*;
use wave_posix::{Listener, Options, Stream, Toe};

const RING_BYTES: u32 = 4096;

static AGENT: LazyLock<Agent> = LazyLock::new(|| Agent::start(0x5eed));

fn small() -> Options {
    Options { receive_bytes: RING_BYTES, send_bytes: RING_BYTES, ..Options::default() }
}

fn pair(toe: &Toe) -> (Listener, Stream, Stream) {
    let listener = toe.listen("0.0.0.0:0".parse().unwrap(), 4).unwrap();
    let near = toe.connect_stream(listener.local_addr().unwrap(), None).unwrap();
    let (far, peer) = listener.accept().unwrap();
    assert_eq!(peer, near.local_addr().unwrap());
    assert_eq!(near.peer_addr().unwrap(), far.local_addr().unwrap());
    (listener, near, far)
}

/// An operation of the program on one of two ends.
#[derive(Clone, Debug)]
enum Op {
    Write(usize),
    WriteInPlace(usize, usize),
    Read(usize),
    ReadInPlace(usize),
    Flush,
    Shutdown,
    NoDelay(bool),
    /// Gives the agent time to work.
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0_usize..6_000).prop_map(Op::Write),
        2 => (1_usize..5_000, 0_usize..5_000).prop_map(|(most, put)| Op::WriteInPlace(most, put)),
        4 => (0_usize..6_000).prop_map(Op::Read),
        2 => (0_usize..5_000).prop_map(Op::ReadInPlace),
        1 => Just(Op::Flush),
        1 => any::<bool>().prop_map(Op::NoDelay),
        3 => Just(Op::Wait),
    ]
}

/// One direction: the bytes written and not yet read.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    next: u8,
    is_finished: bool,
}

impl Pipe {
    fn make(&mut self, count: usize) -> Vec<u8> {
        let start = self.next;
        (0..count).map(|at| start.wrapping_add((at % 251) as u8)).collect()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.next = self.next.wrapping_mul(31).wrapping_add(bytes.len() as u8 | 1);
    }

    fn took(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes.len(), "more bytes arrived than were written");
        let expected: Vec<u8> = self.bytes.drain(..bytes.len()).collect();
        assert!(bytes == expected, "{} bytes differ", bytes.len());
    }
}

fn run(stream: &mut Stream, op: &Op, out: &mut Pipe, into: &mut Pipe) {
    let is_late = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
    match *op {
        Op::Write(count) => {
            let bytes = out.make(count);
            match stream.write(&bytes) {
                Ok(put) => {
                    assert!(count == 0 || !out.is_finished && (1..=count).contains(&put));
                    out.put(&bytes[..put]);
                }
                Err(error) if out.is_finished => assert_eq!(error.kind(), ErrorKind::BrokenPipe),
                Err(error) => assert!(is_late(&error), "{error}"),
            }
        }
        Op::WriteInPlace(most, put) => match stream.reserve(most) {
            Ok(reserved) => {
                assert!((1..=most).contains(&reserved.len()));
                let bytes = out.make(put.min(reserved.len()));
                let [first, second] = reserved.parts();
                let copied = first.copy_from(&bytes);
                second.copy_from(&bytes[copied..]);
                reserved.commit(bytes.len());
                out.put(&bytes);
            }
            Err(error) if out.is_finished => assert_eq!(error.kind(), ErrorKind::BrokenPipe),
            Err(error) => assert!(is_late(&error), "{error}"),
        },
        Op::Read(count) => {
            let mut bytes = vec![0; count];
            match stream.read(&mut bytes) {
                Ok(0) => assert!(count == 0 || into.is_finished && into.bytes.is_empty()),
                Ok(got) => into.took(&bytes[..got]),
                Err(error) => assert!(is_late(&error), "{error}"),
            }
        }
        Op::ReadInPlace(count) => match stream.readable() {
            Ok(readable) if readable.is_empty() => {
                assert!(into.is_finished && into.bytes.is_empty());
            }
            Ok(readable) => {
                let mut bytes = vec![0; count.min(readable.len())];
                let [first, second] = readable.parts();
                assert_eq!(first.len() + second.len(), readable.len());
                let copied = first.copy_to(&mut bytes);
                second.copy_to(&mut bytes[copied..]);
                readable.release(bytes.len());
                into.took(&bytes);
            }
            Err(error) => assert!(is_late(&error), "{error}"),
        },
        Op::Flush => stream.flush().unwrap(),
        Op::Shutdown => {
            stream.shutdown(Shutdown::Write).unwrap();
            out.is_finished = true;
        }
        Op::NoDelay(is_eager) => stream.set_nodelay(is_eager),
        Op::Wait => std::thread::yield_now(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_as_written_for_all_sizes_of_reads_and_writes(
        ops in vec((any::<bool>(), op()), 0..400),
        near_ends_at in 0_usize..400,
        far_ends_at in 0_usize..400,
    ) {
        let toe = Toe::connect_with(AGENT.path(), &small()).unwrap();
        let (_listener, mut near, mut far) = pair(&toe);
        near.set_nonblocking(true);
        far.set_nonblocking(true);
        let (mut out, mut back) = (Pipe::default(), Pipe::default());
        for (at, (is_near, op)) in ops.iter().enumerate() {
            if at == near_ends_at {
                run(&mut near, &Op::Shutdown, &mut out, &mut back);
            }
            if at == far_ends_at {
                run(&mut far, &Op::Shutdown, &mut back, &mut out);
            }
            match is_near {
                true => run(&mut near, op, &mut out, &mut back),
                false => run(&mut far, op, &mut back, &mut out),
            }
        }
        if !out.is_finished {
            run(&mut near, &Op::Shutdown, &mut out, &mut back);
        }
        if !back.is_finished {
            run(&mut far, &Op::Shutdown, &mut back, &mut out);
        }
        for (stream, into) in [(&mut near, &mut back), (&mut far, &mut out)] {
            stream.set_nonblocking(false);
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            into.took(&rest);
            prop_assert!(into.bytes.is_empty(), "{} bytes were lost", into.bytes.len());
            prop_assert!(stream.error().is_none());
        }
    }
}

#[test]
fn megabytes_are_transferred_between_two_programs() {
    let total = 5_000_003_usize;
    let byte = |at: usize| (at % 253) as u8;
    let server = Toe::connect_with(AGENT.path(), &small()).unwrap();
    let listener = server.listen("0.0.0.0:0".parse().unwrap(), 1).unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let toe = Toe::connect(AGENT.path()).unwrap();
        let mut stream = toe.connect_stream(address, None).unwrap();
        let bytes: Vec<u8> = (0..total).map(byte).collect();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut count = [0; 8];
        stream.read_exact(&mut count).unwrap();
        assert_eq!(u64::from_le_bytes(count), total as u64);
        assert_eq!(stream.read(&mut count).unwrap(), 0);
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), total);
    assert!(bytes.iter().enumerate().all(|(at, found)| *found == byte(at)));
    stream.write_all(&(total as u64).to_le_bytes()).unwrap();
    drop(stream);
    client.join().unwrap();
}

#[test]
fn the_kernel_fills_and_drains_rings_in_place() {
    let toe = Toe::connect_with(AGENT.path(), &small()).unwrap();
    let (_listener, mut near, mut far) = pair(&toe);
    let mut source = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at / 7) as u8).collect();
    source.write_all(&bytes).unwrap();
    source.rewind().unwrap();
    let mut target = tempfile::tempfile().unwrap();
    let mut is_sent = false;
    loop {
        if !is_sent {
            let reserved = near.reserve(3_000).unwrap();
            let [first, _] = reserved.parts();
            let got = first.fill_from(&source).unwrap();
            reserved.commit(got);
            is_sent = got == 0;
            if is_sent {
                near.shutdown(Shutdown::Write).unwrap();
            }
        }
        let readable = far.readable().unwrap();
        if readable.is_empty() {
            break;
        }
        let [first, _] = readable.parts();
        let put = first.drain_to(&target).unwrap();
        readable.release(put);
    }
    target.rewind().unwrap();
    let mut found = Vec::new();
    target.read_to_end(&mut found).unwrap();
    assert!(found == bytes);
}
