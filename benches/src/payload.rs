//! `wave bench payload`: messages in a queue's entries against messages in extents, over coherent memory and over a
//! modelled PCIe.
//!
//! Each message goes from a dispatcher to a worker's stub and back as one call. Host and agent have a CPU each and take
//! turns; neither is charged for waiting. Over shared memory, the cost is time on the clock. Over the modelled link, it is
//! the model's charge to the side's CPU, without the model's own bookkeeping.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use wave_compare::{PerRound, balanced_order};
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::endpoint::Sender;
use wave_core::layout::{Config, Layout, write_header};
use wave_core::link::{Home, Port, Side};
use wave_core::message::Subject;
use wave_links::{AnyDma, AnyPort, AnyWindow, LinkSpec, Memory};
use wave_process::cpus;
use wave_rpc::boxes::Outbox;
use wave_rpc::dispatch::{Arrival, Dispatch, Event};
use wave_rpc::extents::{Extents, PayloadConfig};
use wave_rpc::service::{Method, Service};
use wave_rpc::steer;
use wave_rpc::stub::{self, Stub};
use wave_rpc::wire::{END, Head, SERVICE};
use wave_user::rpc::Options;

use wave_experiments::measure::pin;
use wave_terminal::Progress;

use crate::SEED;
use crate::agent::Mute;
use crate::bench::{Bench, arguments};
use clap::Args;

pub static CHECKSUMS: Bench = Bench {
    name: "checksums",
    about: "RPC messages with checksums, against the same without",
    help: "Like `wave bench payload`, over shm and with the extents that hosts use: with a checksum on each frame in both directions
(wave serve kv --checksums), and without.

  SIZE: plain_ns, checked_ns   nanoseconds per message, both ways, host and agent together, medians over chunks
  ratio                        checked_ns divided by plain_ns (below 1.1: checksums cost less than a tenth)

Example:
  wave bench checksums

Exit codes: 0 measured; 3 this machine cannot run the bench (the message says why).",
    figures: &[

    ],
    short: &[],
    has_two_cpus: true,
    arguments: PayloadArgs::augment_args,
    run: |matches, quiet| checksums(arguments::<PayloadArgs>(matches)?.chunks, quiet),
};

pub static BENCH: Bench = Bench {
    name: "payload",
    about: "Large RPC messages in extents, against the same in a queue's entries",
    help: "A call's message of 64 bytes to 1 MiB goes from the agent's dispatcher to a worker and back: in entries
of 56 bytes, and in extents that the link's engine copies. Host and agent have a CPU each and take turns; neither is
charged for waiting. Over shm, a cost is time on the clock, and the sender copies. Over mount-evans, with queues
homed on the NIC, a cost is the modelled link's charge to the side's CPU, without the software's time.

  SIZE: host, agent, both      nanoseconds per message, both ways, medians over chunks; ratio is entries divided by extents
                               (above 1: extents are cheaper)
  host_pays_from_bytes         from this size on, extents are cheaper for the host; null if they never are

Examples:
  wave bench payload
  wave bench payload --json | jq '.\"mount-evans\".\"65536\".host'

Exit codes: 0 measured; 3 this machine cannot run the bench (the message says why).",
    figures: &[

    ],
    short: &[],
    has_two_cpus: true,
    arguments: PayloadArgs::augment_args,
    run: |matches, quiet| payload(arguments::<PayloadArgs>(matches)?.chunks, quiet),
};

#[derive(Args, Debug)]
struct PayloadArgs {
    /// Number of chunks to measure of each; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
}

const SIZES: [usize; 10] =
    [64, 128, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Approximate number of bytes in a chunk.
const CHUNK_BYTES: usize = 512 << 10;
const CHUNK_MESSAGES_MAX: usize = 200;
const WARM_UP: u32 = 1;
/// Longer than the longest transfer of an extent over the modelled link.
const FLIGHT: Duration = Duration::from_micros(6);

/// A port that the bench shares with the dispatcher, to read the charges.
struct Lent(Rc<AnyPort>);

impl Port for Lent {
    type Window = AnyWindow;
    type Dma = AnyDma;

    fn window(&self, home: Home) -> &AnyWindow {
        self.0.window(home)
    }

    fn dma(&self) -> &AnyDma {
        self.0.dma()
    }
}

/// Meters the cost of a side's work.
struct Meter<'a> {
    port: &'a AnyPort,
    ns: Cell<u64>,
}

impl Meter<'_> {
    fn charge<T>(&self, work: impl FnOnce() -> T) -> T {
        self.port.take_charges();
        let start = Instant::now();
        let result = work();
        let elapsed = start.elapsed().as_nanos() as u64;
        let charged = self.port.take_charges().map(|charges| charges.total_ns());
        self.ns.set(self.ns.get() + charged.unwrap_or(elapsed));
        result
    }

    /// Waits until sent data has arrived over a modelled link. Neither side is charged for it.
    fn wait(&self) {
        if self.port.charges().is_some() {
            let start = Instant::now();
            while start.elapsed() < FLIGHT {
                std::hint::spin_loop();
            }
        }
    }
}

/// The turns of host and agent, and the cost of the host's turns.
#[derive(Default)]
struct Turns {
    taken: AtomicU64,
    over: AtomicBool,
    host_ns: AtomicU64,
}

impl Turns {
    /// Waits for the turn of the side with this parity. Returns false if there are no more turns.
    fn wait(&self, parity: u64) -> bool {
        loop {
            if self.taken.load(Ordering::Acquire) % 2 == parity {
                return true;
            }
            if self.over.load(Ordering::Acquire) {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    fn pass(&self) {
        self.taken.fetch_add(1, Ordering::Release);
    }
}

/// The worker's thread: echoes messages in its turns, from each chunk's beginning.
fn host(
    layout: &Layout,
    port: &AnyPort,
    is_checked: bool,
    turns: &Turns,
    chunks: &mpsc::Receiver<()>,
) {
    let mut stub = Stub::new(layout, 0);
    if is_checked {
        stub.check();
    }
    let _ = stub.announce(port, None).and_then(|()| stub.publish(port));
    turns.pass();
    let mut reply = Vec::new();
    while chunks.recv().is_ok() {
        let meter = Meter { port, ns: Cell::new(0) };
        while turns.wait(1) {
            host_turn(&mut stub, port, &meter, &mut reply);
            turns.host_ns.fetch_add(meter.ns.take(), Ordering::Relaxed);
            turns.pass();
        }
    }
}

fn host_turn(stub: &mut Stub, port: &AnyPort, meter: &Meter<'_>, reply: &mut Vec<u8>) {
    for _ in 0..2 {
        let event = meter.charge(|| stub.poll(port, Nanos(0)));
        if let Ok(Some(stub::Event::Begin { call, message: Some(message), .. })) = event {
            reply.clear();
            reply.extend_from_slice(message);
            meter.charge(|| {
                let _ = stub.message(port, call, reply, END);
                stub.publish(port)
            })
        } else {
            meter.charge(|| stub.publish(port))
        }
        .expect("the agent is part of this program");
        if stub.is_flushed(port) {
            return;
        }
        meter.wait();
    }
}

/// Both sides of one way of sending over one link.
struct Rig {
    port: Rc<AnyPort>,
    dispatch: Dispatch<Lent, Mute>,
    turns: Arc<Turns>,
    begin: mpsc::Sender<()>,
    events: Vec<Event>,
}

/// Nanoseconds per message.
#[derive(Clone, Copy)]
struct Cost {
    host: f64,
    agent: f64,
}

impl Rig {
    fn new(
        link: &LinkSpec,
        payloads: PayloadConfig,
        is_checked: bool,
        cpu: usize,
    ) -> Result<Rig, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut config = match link {
            LinkSpec::Shm => Config::coherent(1),
            LinkSpec::Model(_) => Config::pcie(1),
        };
        (config.contexts, config.subjects, config.pools) = (1, 4, payloads.pools());
        config.decisions.entries = config.messages.entries;
        let layout = Layout::new(config).map_err(|error| text(&error))?;
        let (nic, host_lines) = (layout.nic_lines, layout.host_lines);
        let extra = link.extra_lines(nic, host_lines);
        let memory = Memory::create("wave-bench", nic, host_lines, extra);
        let memory = Arc::new(memory.map_err(|error| text(&error))?.0);
        let port = |side| {
            let port = link.port(&memory, side, &layout.mappings(side));
            port.map_err(|error| text(&error))
        };
        let control = port(Side::Host)?;
        write_header(&layout, control.window(Home::Nic));
        let method = Method { path: "/wave.Bench/Echo".into(), ..Method::default() };
        let service = Service { methods: vec![method], descriptors: Vec::new() }.encode();
        let mut outbox = Outbox::new(Sender::new(&layout.messages[1], Side::Host), Extents::none());
        let lengths = [service.len() as u32, 0];
        let head = Head { lengths, ..Head::new(SERVICE, Subject::default()) };
        outbox.send(&control, &head, &service, &[]).map_err(|error| text(&error))?;
        outbox.publish(&control);
        let turns = Arc::new(Turns::default());
        let (begin, chunks) = mpsc::channel();
        let (its, its_layout) = (Arc::clone(&turns), layout.clone());
        let (its_link, its_memory) = (link.clone(), Arc::clone(&memory));
        std::thread::spawn(move || {
            let _ = pin(cpu);
            let types = its_layout.mappings(Side::Host);
            let port = its_link.port(&its_memory, Side::Host, &types);
            let port = port.expect("a port like the control context's");
            host(&its_layout, &port, is_checked, &its, &chunks);
        });
        let port = Rc::new(port(Side::Agent)?);
        let steering = steer::by_name("jbsq", &config).map_err(|error| text(&error))?;
        let bells = (0..layout.doorbells()).map(|_| Mute).collect();
        let dispatch = Dispatch::new(layout, Lent(Rc::clone(&port)), bells, steering);
        turns.wait(1);
        turns.pass();
        let mut rig = Rig { port, dispatch, turns, begin, events: Vec::new() };
        while !rig.dispatch.is_ready() {
            rig.dispatch.step(Nanos(0), &mut rig.events).map_err(|error| text(&error))?;
        }
        Ok(rig)
    }

    /// Measures `count` messages, both ways.
    fn chunk(&mut self, message: &Bytes, count: usize) -> Result<Cost, String> {
        let Rig { port, dispatch, turns, begin, events } = self;
        let meter = Meter { port, ns: Cell::new(0) };
        turns.host_ns.store(0, Ordering::Relaxed);
        turns.over.store(false, Ordering::Release);
        begin.send(()).map_err(|_| "the bench's worker has ended".to_owned())?;
        for _ in 0..count {
            let sent = Some(message.clone());
            let arrival = Arrival { message: sent, end: true, ..Arrival::default() };
            let begun = meter.charge(|| dispatch.begin(Nanos(0), arrival));
            begun.map_err(|error| error.to_string())?;
            events.clear();
            while !events.iter().any(|event| matches!(event, Event::Message { .. })) {
                for _ in 0..2 {
                    let step = meter.charge(|| dispatch.step(Nanos(0), events));
                    if !matches!(step.map_err(|error| error.to_string())?, Step::Progress) {
                        break;
                    }
                    meter.wait();
                }
                turns.pass();
                turns.wait(0);
                meter.wait();
            }
            if !matches!(&events[..], [Event::Message { message: reply, .. }] if reply == message) {
                return Err("the worker's answer differs from the message".into());
            }
        }
        turns.over.store(true, Ordering::Release);
        let per_message = |ns: u64| ns as f64 / count as f64;
        let host = per_message(turns.host_ns.load(Ordering::Relaxed));
        Ok(Cost { host, agent: per_message(meter.ns.get()) })
    }
}

/// Costs for one size: those of each chunk, of each of the two ways that are compared.
type Row = [Vec<Cost>; 2];

/// Measures every size by both ways of each pair, in turns.
fn measure(
    pairs: &mut [[Rig; 2]],
    chunks: u32,
    quiet: bool,
) -> Result<Vec<[Row; SIZES.len()]>, String> {
    let messages = SIZES.map(|size| Bytes::from(vec![0xa5; size]));
    let mut rows = vec![[const { [const { Vec::new() }; 2] }; SIZES.len()]; pairs.len()];
    let progress = Progress::new(u64::from(chunks + WARM_UP), quiet);
    for chunk in 0..chunks + WARM_UP {
        progress.begin(&format!("chunk {} of {}", chunk + 1, chunks + WARM_UP));
        for (rigs, rows) in pairs.iter_mut().zip(&mut rows) {
            for (message, row) in messages.iter().zip(rows) {
                let count = (CHUNK_BYTES / message.len()).clamp(1, CHUNK_MESSAGES_MAX);
                for way in balanced_order(SEED, chunk.into(), rigs.len()) {
                    let cost = rigs[way].chunk(message, count)?;
                    if chunk >= WARM_UP {
                        row[way].push(cost);
                    }
                }
            }
        }
        progress.end();
    }
    Ok(rows)
}

pub fn payload(chunks: u32, quiet: bool) -> Result<Value, String> {
    let [host, agent] = cpus::two()?;
    pin(agent)?;
    let mount_evans = LinkSpec::builtin("mount-evans").ok_or("there is no link mount-evans")?;
    let links = [LinkSpec::Shm, mount_evans];
    let extents = PayloadConfig { inline_max: 0, ..Options::payloads(&links[0]) };
    let mut rigs = Vec::new();
    for link in &links {
        let rig = |payloads| Rig::new(link, payloads, false, host);
        rigs.push([rig(PayloadConfig::NONE)?, rig(extents)?]);
    }
    let rows = measure(&mut rigs, chunks, quiet)?;
    let mut result = Map::new();
    result.insert("bench".into(), "payload".into());
    result.insert("peer".into(), "the same message in entries of 56 bytes".into());
    result.insert("chunks".into(), chunks.into());
    result.insert("extents".into(), extents.extents.into());
    result.insert("extent_bytes".into(), (u64::from(extents.lines) * 64).into());
    for (link, rows) in links.iter().zip(&rows) {
        result.insert(link.name().into(), of_link(rows));
    }
    Ok(result.into())
}

/// Measures messages whose frames have checksums against messages without, over shared memory, with the extents that hosts use.
pub fn checksums(chunks: u32, quiet: bool) -> Result<Value, String> {
    let [host, agent] = cpus::two()?;
    pin(agent)?;
    let link = LinkSpec::Shm;
    let rig = |is_checked| Rig::new(&link, Options::payloads(&link), is_checked, host);
    let rows = measure(&mut [[rig(false)?, rig(true)?]], chunks, quiet)?;
    let mut result = Map::new();
    result.insert("bench".into(), "checksums".into());
    result.insert("peer".into(), "the same messages without checksums".into());
    result.insert("chunks".into(), chunks.into());
    for (size, row) in SIZES.iter().zip(&rows[0]) {
        let [plain, checked] = ways(row, |cost| cost.host + cost.agent);
        let cost = json!({
            "plain_ns": plain.median(),
            "checked_ns": checked.median(),
            "ratio": checked.over(&plain).estimate(),
        });
        result.insert(size.to_string(), cost);
    }
    Ok(result.into())
}

/// Selects one part of a cost.
type Part = fn(&Cost) -> f64;

fn ways(row: &Row, of: Part) -> [PerRound; 2] {
    row.each_ref().map(|costs| PerRound::of(costs, of))
}

fn of_link(rows: &[Row]) -> Value {
    let sides: [(&str, Part); 3] = [
        ("host", |cost| cost.host),
        ("agent", |cost| cost.agent),
        ("both", |cost| cost.host + cost.agent),
    ];
    let mut result = Map::new();
    for (side, of) in sides {
        let pays = |row: &Row| {
            let [entries, extents] = ways(row, of);
            entries.over(&extents).median() > 1.0
        };
        // The smallest size from which on extents are always cheaper.
        let from = rows.iter().rposition(|row| !pays(row)).map_or(0, |last| last + 1);
        let name = format!("{side}_pays_from_bytes");
        result.insert(name, SIZES.get(from).copied().into());
    }
    for (size, row) in SIZES.iter().zip(rows) {
        let mut members = Map::new();
        for (side, of) in sides {
            let [entries, extents] = ways(row, of);
            let member = json!({
                "entries_ns": entries.median(),
                "extents_ns": extents.median(),
                "ratio": entries.over(&extents).estimate(),
            });
            members.insert(side.into(), member);
        }
        result.insert(size.to_string(), members.into());
    }
    result.into()
}
