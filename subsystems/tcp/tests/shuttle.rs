//! The executor with threads, under thousands of schedules. The model compiles the library's `executors/` and `reorder.rs` against
//! shuttle's threads, locks and channels, and compares the output with that of the executor on one core. A thread that waits for
//! ever is reported as a deadlock, with the schedule that leads to it.
//!
//! Not covered: timeouts, as shuttle's `recv_timeout` never expires, and weak memory. All shared data but the trace, which is off
//! here, is behind locks or passes through channels.

extern crate alloc;

/// shuttle's types under the names of `src/sync.rs`.
mod sync {
    pub use shuttle::sync::mpsc::{
        Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel,
    };
    pub use shuttle::sync::{Arc, Mutex, RwLock};

    #[derive(Debug)]
    pub struct Builder(shuttle::thread::Builder);

    #[derive(Debug)]
    pub struct JoinHandle<T>(shuttle::thread::JoinHandle<T>);

    impl Builder {
        pub fn new() -> Builder {
            Builder(shuttle::thread::Builder::new())
        }

        pub fn name(self, name: String) -> Builder {
            Builder(self.0.name(name))
        }

        pub fn spawn<F, T>(self, run: F) -> std::io::Result<JoinHandle<T>>
        where
            F: FnOnce() -> T + Send + 'static,
            T: Send + 'static,
        {
            self.0.spawn(run).map(JoinHandle)
        }
    }

    impl<T> JoinHandle<T> {
        pub fn join(self) -> std::thread::Result<T> {
            self.0.join()
        }

        /// The executor asks after a timeout, which does not occur here.
        pub fn is_finished(&self) -> bool {
            unreachable!("shuttle has no timeouts")
        }
    }
}

/// The faults that these tests plant, under the names of `src/planted.rs`.
mod planted {
    use std::cell::Cell;

    #[derive(Clone, Copy)]
    pub enum Planted {
        NoSequencer,
    }

    thread_local! {
        /// shuttle runs all threads of a model in the thread of its test.
        static IS_UNORDERED: Cell<bool> = const { Cell::new(false) };
    }

    pub fn is_planted(Planted::NoSequencer: Planted) -> bool {
        IS_UNORDERED.get()
    }

    pub fn plant() {
        IS_UNORDERED.set(true);
    }
}

#[allow(dead_code, unused_imports, reason = "the model uses a part of it")]
#[path = "../src/executors/mod.rs"]
mod executors;
#[allow(dead_code, reason = "the model uses a part of it")]
#[path = "../src/reorder.rs"]
mod reorder;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroUsize;

use executors::{Executor, Inline, Threads};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use wave_core::clock::Nanos;
use wave_tcp::context::{Filled, Update};
use wave_tcp::copies::Copied;
use wave_tcp::datapath::{Command, Established, FlowId, Packet, Settings, Tuple};
use wave_tcp::packet::tcp::HEADERS_BYTES_MAX;
use wave_tcp::packet::{Ecn, Flags, Options, TcpHeader, build_tcp};
use wave_tcp::pipeline::{Entry, Stamped, Work};
use wave_tcp::seq::{Seq, seq_of};
use wave_tcp::stages::marks::Marks;
use wave_tcp::stages::receive::AckTiming;
use wave_tcp_testbed::{CONTEXT, update};
// The executors' files look for these in the root of their crate.
use wave_tcp::{datapath, flow, pipeline, stages, trace, tuples};

const REPLICAS: NonZeroUsize = NonZeroUsize::new(2).expect("two");
const RING: u32 = 1 << 14;
const SETTINGS: Settings = Settings { mac: [1; 6], super_bytes: 0, flows: 4, key: (1, 2) };
const SEND_BASE: Seq = Seq(u32::MAX - 100);
const RECEIVE_BASE: Seq = Seq(u32::MAX - 150);
/// Payload of each received segment, in bytes.
const PAYLOAD: usize = 100;

fn local() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 80))
}

fn remote(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// A new connection from this port of the peer.
fn established(port: u16) -> Established {
    let ends = Tuple { local: local(), remote: remote(port) };
    let socket = port.into();
    Established { socket, ..wave_tcp_testbed::established(ends, [SEND_BASE, RECEIVE_BASE], RING) }
}

/// The peer's segment at this position of its stream.
fn segment(port: u16, position: usize) -> Entry<Vec<u8>> {
    let header = TcpHeader {
        source_mac: [2; 6],
        destination_mac: SETTINGS.mac,
        source: remote(port),
        destination: local(),
        ecn: Ecn::NotCapable,
        ttl: 64,
        seq: seq_of(RECEIVE_BASE, position as u64),
        ack: Some(SEND_BASE),
        flags: Flags::PSH,
        window: u16::MAX,
        options: Options::default(),
    };
    let mut frame = vec![0; HEADERS_BYTES_MAX];
    let head = build_tcp(&mut frame, &header, PAYLOAD as u32);
    frame.truncate(head);
    frame.extend(std::iter::repeat_n(7, PAYLOAD));
    Entry::Packet(Packet { frame, checksum_is_good: true, segment_bytes: 0 })
}

/// A connection receives three segments, the first two of them swapped, and sends two.
fn turns(flow: FlowId, port: u16) -> Vec<Entry<Vec<u8>>> {
    let copied = |landed| Copied {
        landed,
        merged: 0,
        acknowledge: Some(AckTiming::Now),
        marks: Marks::default(),
    };
    let written = Update {
        written: 1_500,
        is_eager: true,
        filled: Filled { receive: RING, send: RING },
        ..update(flow)
    };
    vec![
        segment(port, PAYLOAD),
        Entry::Flow(flow, Work::Request(CONTEXT, written)),
        segment(port, 0),
        Entry::Flow(flow, Work::Transmit),
        segment(port, 2 * PAYLOAD),
        Entry::Flow(flow, Work::Copied(copied(3 * PAYLOAD as u64))),
        Entry::Flow(flow, Work::Transmit),
        Entry::Flow(flow, Work::Announce(0)),
    ]
}

/// Entries of two connections, with a frame that ends in the pre stage and one for the control plane; then `more` that ask the
/// first connection to speak.
fn entries(flows: [FlowId; 2], more: usize) -> Vec<Stamped<Vec<u8>>> {
    let broken = Packet { frame: vec![0; 20], checksum_is_good: true, segment_bytes: 0 };
    let mut entries = vec![Entry::Packet(broken)];
    for (one, other) in turns(flows[0], PORTS[0]).into_iter().zip(turns(flows[1], PORTS[1])) {
        entries.extend([one, other]);
    }
    entries.insert(5, segment(9_999, 0));
    entries
        .extend((0..more).map(|_| Entry::Flow(flows[0], Work::Announce(Command::Challenge.bit()))));
    let stamped = |(entry, number)| Stamped { number, now: Nanos(1_000 * number), entry };
    entries.into_iter().zip(0..).map(stamped).collect()
}

const PORTS: [u16; 2] = [5_000, 5_001];

/// Everything that leaves an executor, in order.
fn output<E: Executor<Vec<u8>>>(mut executor: E, more: usize) -> Vec<String> {
    let flows = PORTS.map(|port| executor.install(Nanos(0), None, &established(port)).unwrap());
    let (mut output, mut outputs) = (Vec::new(), VecDeque::new());
    let mut leave = |executor: &mut E, waits| {
        let outcome = executor.pop(waits, &mut outputs);
        let outputs: Vec<_> = outputs.drain(..).collect();
        output.extend(outcome.map(|outcome| format!("{outcome:?} {outputs:?}")));
    };
    for entry in entries(flows, more) {
        while executor.room() == 0 {
            leave(&mut executor, true);
        }
        executor.push(entry);
        // With more entries, the executor is full before the first one leaves.
        if more == 0 {
            leave(&mut executor, false);
        }
        // The control plane looks at a connection while stages work on it.
        assert!(executor.inspect(flows[0]).is_some());
    }
    while executor.in_flight() > 0 {
        leave(&mut executor, true);
    }
    output.push(format!("{:?}", flows.map(|flow| executor.statistics(flow))));
    let ends = flows.map(|flow| executor.remove(flow).unwrap());
    output.push(format!("{ends:?}"));
    output
}

fn check(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(body);
}

fn in_threads(more: usize) -> Vec<String> {
    output(Threads::<_>::start(SETTINGS, REPLICAS), more)
}

fn on_one_core(more: usize) -> Vec<String> {
    output(Inline::<_>::new(SETTINGS), more)
}

/// Compares threads with one core, under as many schedules of either kind.
fn is_as_on_one_core(more: usize, schedules: usize) {
    let expected = on_one_core(more);
    // Each entry has an outcome; statistics and the connections' ends follow.
    assert_eq!(expected.len(), 18 + more + 2);
    let same = move || assert_eq!(in_threads(more), expected);
    check(RandomScheduler::new(schedules), same.clone());
    check(PctScheduler::new(3, schedules), same);
}

#[test]
fn threads_give_the_output_of_one_core() {
    is_as_on_one_core(0, 1_000);
}

/// The executor has room for 64 entries.
#[test]
fn full_executor_gives_the_output_of_one_core() {
    is_as_on_one_core(70, 50);
}

#[test]
fn output_differs_without_reorder_buffers() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    let expected = on_one_core(0);
    planted::plant();
    let different = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&different);
    let body = move || {
        count.fetch_add(u32::from(in_threads(0) != expected), Ordering::Relaxed);
    };
    check(RandomScheduler::new(100), body);
    assert!(different.load(Ordering::Relaxed) > 0);
}

#[test]
fn stages_end_with_entries_in_flight() {
    let body = || {
        let mut executor = Threads::<_>::start(SETTINGS, REPLICAS);
        let flows = PORTS.map(|port| executor.install(Nanos(0), None, &established(port)).unwrap());
        for entry in entries(flows, 0) {
            executor.push(entry);
        }
        let _ = executor.pop(true, &mut VecDeque::new());
        drop(executor);
    };
    check(RandomScheduler::new(500), body);
    check(PctScheduler::new(3, 500), body);
}
