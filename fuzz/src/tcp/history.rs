//! One history: two stacks, some connections between them, and an adversarial wire, all drawn from a seed.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use wave_core::clock::Nanos;
use wave_tcp_planted::congestion::Algorithm;
use wave_tcp_planted::context::Filled;
use wave_tcp_planted::control::{Bounds, Secrets, State};
use wave_tcp_planted::datapath::{Ring, Settings, Tuple};
use wave_tcp_planted::datapaths::DatapathKind;
use wave_tcp_planted::trace::Trace;
use wave_tcp_testbed_planted::{BOUNDS, By, Make, Runs, Setup, TICK, host6};
use wave_wires::{Adversity, Memory};

use super::side::{Ends, Kind, Side};
use super::{Counts, Oracle, Violation};

const PORT: u16 = 80;
const FIRST_PORT: u16 = 40_000;
/// Maximum number of connections in a history.
const CONNECTIONS_MAX: u16 = 4;
/// Time within which all connections must end.
const ENDS_WITHIN: Nanos = Nanos::from_millis(2 * 3_600_000);
/// Time within which an unfinished handshake, and then a connection in TIME-WAIT, must be forgotten.
const FORGETS_WITHIN: Nanos = Nanos::from_millis(200_000);
/// Minimum time for which an ended connection is remembered, less a second.
const REMEMBERS: Nanos = Nanos::from_millis(59_000);
/// Maximum number of steps of a history.
const STEPS_MAX: u64 = 2_000_000;

/// The result of a history.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub violation: Option<Violation>,
    pub counts: Counts,
    pub trace_hash: u64,
}

/// Behaviour of the hosts in a history.
#[derive(Clone, Copy, Debug)]
struct Hosts {
    /// Bytes that each side writes on each connection.
    totals: [u64; 2],
    write_max: u64,
    read_max: u64,
    /// Probability, at each read, that a host stops reading for a while.
    pauses: f64,
    pause_max: Nanos,
    /// Maximum time between two actions of a host.
    acts_every: Nanos,
}

struct History {
    both: [Side; 2],
    server: SocketAddr,
    rng: Pcg32,
    now: Nanos,
    hosts: Hosts,
    /// Start of each connection.
    connects: Vec<(Nanos, u16)>,
    /// Times at which old SYNs are replayed.
    replays: Vec<Nanos>,
    /// Spans of virtual time in which the network delivers nothing.
    cuts: Vec<(Nanos, Nanos)>,
    /// Times at which a side's stack is replaced.
    changes: Vec<(Nanos, usize)>,
    steps: u64,
}

/// Runs the history of a seed over a data path. With another one than FlexTOE's, one side has FlexTOE's in half of the histories, and in
/// a quarter the sides change between the two while connections are open.
pub fn run(seed: u64, kind: DatapathKind) -> Outcome {
    let flextoe = |settings, by| Runs::Inline.datapath(settings, by);
    if kind == DatapathKind::FlexToe {
        return run_over(seed, &flextoe, true);
    }
    // In the first two quarters one side has FlexTOE's, and in the last one every second data path is FlexTOE's.
    let made = Cell::new(0);
    let make = |settings: Settings, by| {
        let number = made.replace(made.get() + 1);
        match seed % 4 {
            3 if number % 2 == 1 => flextoe(settings, by),
            quarter if quarter == number => flextoe(settings, by),
            _ => Box::new(kind.make(settings, Trace::new(0).into())),
        }
    };
    let mut history = History::new(seed, &make);
    if seed % 4 == 3 {
        let mut rng = Pcg32::seed_from_u64(!seed);
        let start = history.now;
        let mut soon = || start + Nanos::from_micros(rng.random_range(0..3_000_000));
        history.changes = (0..4).map(|change| (soon(), change % 2)).collect();
    }
    history.outcome(seed, &make)
}

/// Runs the history of a seed. `make` makes the data path, first for one side, then for the other. `is_prompt`: a poll finishes
/// all that its budget allows before it returns.
pub fn run_over(seed: u64, make: Make<'_>, is_prompt: bool) -> Outcome {
    let mut history = History::new(seed, make);
    for side in &mut history.both {
        side.is_prompt = is_prompt;
    }
    history.outcome(seed, make)
}

/// Draws a length: half of the time uniformly, else so that short ones occur, too.
fn length(rng: &mut Pcg32, most: u64) -> u64 {
    if rng.random_bool(0.5) {
        return rng.random_range(0..=most);
    }
    let bits = rng.random_range(0..=most.ilog2());
    rng.random_range(0..=(2_u64 << bits).min(most))
}

impl History {
    /// Runs the history, and counts. `make` makes the data paths of successors.
    fn outcome(mut self, seed: u64, make: Make<'_>) -> Outcome {
        let violation = self.all(make).err();
        let mut counts = Counts::default();
        let mut trace_hash = 0_u64;
        for (side, turn) in self.both.iter_mut().zip([0, 32]) {
            side.count();
            counts.add(&side.counts);
            trace_hash ^= side.trace.0.rotate_left(turn);
        }
        let violation = violation.map(|(oracle, what)| Violation { seed, oracle, what });
        Outcome { violation, counts, trace_hash }
    }

    fn new(seed: u64, make: Make<'_>) -> History {
        let ecn = Ecn::of(seed);
        let mut rng = Pcg32::seed_from_u64(seed);
        let chance = |rng: &mut Pcg32, most: f64| rng.random_range(0.0..most);
        let adversity = Adversity {
            seed: rng.random(),
            loss: chance(&mut rng, 0.05),
            duplicate: chance(&mut rng, 0.05),
            reorder: chance(&mut rng, 0.1),
            reorder_ns: rng.random_range(100_000..2_000_000),
            corrupt: chance(&mut rng, 0.03),
            truncate: chance(&mut rng, 0.02),
            full: chance(&mut rng, 0.02),
            delay_ns: 20_000..=rng.random_range(50_000..1_000_000),
            mtu: [576, 1500, 9000][rng.random_range(0..3)],
            gso_bytes: [0, 20_000, 65_535][rng.random_range(0..3)],
            segments_max: 256,
            frames_max: 64,
            ce_mark: ecn.ce_mark,
            ..Adversity::default()
        };
        let ring_bytes = 1 << rng.random_range(12..=17);
        let connections = rng.random_range(1..=CONNECTIONS_MAX);
        let copy_max = Nanos::from_micros([50, 500, 5_000][rng.random_range(0..3)]);
        let by = recoveries(&mut rng);
        let kinds = [1, 2].map(|side| {
            let mut key = || (rng.random(), rng.random());
            let secrets = Secrets { sequence: key(), timestamp: key(), port: key(), table: key() };
            // A new receive ring has memory for a part of its bytes.
            let filled = Filled { receive: (ring_bytes / 4).max(Ring::BYTES_MIN), send: 0 };
            let setup = Setup {
                host: side,
                secrets,
                bounds: Bounds { flows: 16, ..BOUNDS },
                sockets: connections.into(),
                ring_bytes,
                filled,
                by: by[usize::from(side) - 1],
            };
            Kind {
                setup,
                algorithm: ecn.algorithms[usize::from(side) - 1],
                drops_asking_syns: ecn.drops_asking_syns,
                copy_max,
            }
        });
        let (one, other) = Memory::pair(&adversity);
        let mut both = [Side::new(kinds[0], one, make), Side::new(kinds[1], other, make)];
        // IPv6 has no links with a smaller MTU.
        let hosts = match seed % 4 == 3 && adversity.mtu >= 1280 {
            true => [1, 2].map(|side| IpAddr::V6(host6(side))),
            false => [1, 2].map(|side| IpAddr::V4(Ipv4Addr::new(10, 0, 0, side))),
        };
        let ends = [SocketAddr::new(hosts[0], FIRST_PORT), SocketAddr::new(hosts[1], PORT)];
        let now = start(&mut rng, &kinds, &ends);
        both[1].listen(now, PORT, connections.into());
        let most = [4_000, 30_000, 150_000][rng.random_range(0..3)];
        let pauses = if rng.random_bool(0.4) { chance(&mut rng, 0.1) } else { 0.0 };
        let hosts = Hosts {
            totals: [length(&mut rng, most), length(&mut rng, most)],
            write_max: [100, 1_500, 20_000][rng.random_range(0..3)],
            read_max: [500, 5_000, 50_000][rng.random_range(0..3)],
            pauses,
            pause_max: Nanos::from_millis(rng.random_range(10..5_000)),
            acts_every: Nanos::from_micros(rng.random_range(50..4_000)),
        };
        let soon =
            |rng: &mut Pcg32, millis: u64| now + Nanos(rng.random_range(0..millis * 1_000_000));
        let ports = (0..connections).map(|at| FIRST_PORT + at);
        let mut connects: Vec<_> = ports.map(|port| (soon(&mut rng, 200), port)).collect();
        connects[0].0 = now;
        let abrupt: Vec<u16> =
            connects.iter().map(|(_, port)| *port).filter(|_| rng.random_bool(0.08)).collect();
        for side in &mut both {
            side.abrupt.clone_from(&abrupt);
        }
        let replays = (0..rng.random_range(0..3)).map(|_| soon(&mut rng, 2_000)).collect();
        // Short enough that most attempts of a handshake, and of a close, fall outside: otherwise it may rightly fail.
        let count = usize::from(rng.random_bool(0.3));
        let cuts = (0..count)
            .map(|_| {
                let from = soon(&mut rng, 500);
                (from, from + Nanos::from_millis(rng.random_range(100..2_000)))
            })
            .collect();
        History {
            both,
            server: ends[1],
            rng,
            now,
            hosts,
            connects,
            replays,
            cuts,
            changes: Vec::new(),
            steps: 0,
        }
    }

    fn all(&mut self, make: Make<'_>) -> Result<(), (Oracle, String)> {
        let is_over = |history: &History| history.is_over();
        let never = Nanos::MAX;
        if !self.run_until(make, ENDS_WITHIN, never, is_over)? {
            return Err(self.unfinished("a connection"));
        }
        self.check_old_syns(make)?;
        self.run_until(make, FORGETS_WITHIN, never, |_| false)?;
        // Connections that an old SYN opened must have ended, too.
        if !self.run_until(make, ENDS_WITHIN, never, is_over)? {
            return Err(self.unfinished("a connection"));
        }
        self.run_until(make, FORGETS_WITHIN, never, |_| false)?;
        if self.both.iter().any(|side| !side.entries().is_empty()) {
            return Err((Oracle::Empty, self.unfinished("an entry").1));
        }
        Ok(())
    }

    fn unfinished(&self, what: &str) -> (Oracle, String) {
        let entries = self.both.each_ref().map(Side::entries);
        let mut sockets = Vec::new();
        for side in &self.both {
            for (socket, program) in side.machine.sockets.values().zip(&side.programs) {
                let (wrote, read) = (socket.wrote.len(), socket.read.len());
                sockets.push((program.ends, wrote, read, socket.received, socket.is_over));
            }
        }
        (Oracle::Ends, format!("{what} did not end: {entries:?}, {sockets:?}"))
    }

    /// Checks that old SYNs do not end connections in TIME-WAIT.
    fn check_old_syns(&mut self, make: Make<'_>) -> Result<(), (Oracle, String)> {
        let until = self.now + Nanos::from_millis(50);
        let closed = &self.both[1].closed;
        let mut remembered: Vec<Ends> = self.both[1].in_state(State::TimeWait);
        remembered.retain(|ends| closed.get(ends).is_some_and(|at| until.since(*at) < REMEMBERS));
        for at in 0..self.both[0].syns.len() {
            self.both[0].replay(at);
        }
        self.run_until(make, Nanos(u64::MAX), until, |_| false)?;
        let still = self.both[1].in_state(State::TimeWait);
        match remembered.iter().find(|ends| !still.contains(ends)) {
            None => Ok(()),
            Some(ends) => {
                Err((Oracle::Remembered, format!("an old SYN ended {ends:?} in TIME-WAIT")))
            }
        }
    }

    fn is_over(&self) -> bool {
        let [client, server] = &self.both;
        self.connects.is_empty()
            && client.machine.sockets.values().all(|socket| socket.is_over)
            && server.machine.sockets.values().all(|socket| socket.is_over || socket.flow.is_none())
    }

    /// Runs until `is_done`, for at most `most` and not past `until`. Returns whether it is done.
    fn run_until(
        &mut self,
        make: Make<'_>,
        most: Nanos,
        until: Nanos,
        is_done: impl Fn(&History) -> bool,
    ) -> Result<bool, (Oracle, String)> {
        let end = (self.now + most).min(until);
        while self.now < end {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(self.unfinished("the history"));
            }
            let now = self.now;
            let mut next = end.min(self.schedule()).min(self.change(make));
            self.both[0].machine.wire.advance(now.0);
            for at in 0..2 {
                next = next.min(self.hosts_act(at));
                let side = &mut self.both[at];
                if let Some(at) = side.step(now, &mut self.rng) {
                    next = next.min(at);
                }
                // The step may have given the hosts something to do.
                let acts = side.programs.iter().filter_map(|program| program.acts_at).min();
                next = next.min(acts.unwrap_or(end));
                if let Some(broken) = side.broken.take() {
                    return Err(broken);
                }
            }
            if is_done(self) {
                return Ok(true);
            }
            let due = self.both[0].machine.wire.due().map_or(end, Nanos);
            self.now = next.min(due).max(now + TICK);
        }
        Ok(false)
    }

    /// Replaces stacks whose time has come. Returns the time of the next change.
    fn change(&mut self, make: Make<'_>) -> Nanos {
        let now = self.now;
        for at in (0..self.changes.len()).rev() {
            if self.changes[at].0 <= now {
                let (_, side) = self.changes.swap_remove(at);
                self.both[side].change(now, &mut self.rng, make);
            }
        }
        self.changes.iter().map(|(at, _)| *at).min().unwrap_or(Nanos::MAX)
    }

    /// Starts connections, replays SYNs, and cuts the wire. Returns the time of the next such event.
    fn schedule(&mut self) -> Nanos {
        let now = self.now;
        let server = self.server;
        let client = &mut self.both[0];
        self.connects.retain(|(at, port)| {
            if *at <= now {
                client.connect(now, *port, server);
            }
            *at > now
        });
        let rng = &mut self.rng;
        self.replays.retain(|at| {
            if *at <= now && !client.syns.is_empty() {
                client.replay(rng.random_range(0..client.syns.len()));
            }
            *at > now
        });
        self.cuts.retain(|(_, to)| *to > now);
        let is_cut = self.cuts.iter().any(|(from, _)| *from <= now);
        for side in &mut self.both {
            side.is_cut = is_cut;
        }
        let connects = self.connects.iter().map(|(at, _)| *at);
        let cuts = self.cuts.iter().map(|(from, to)| if *from > now { *from } else { *to });
        connects.chain(self.replays.iter().copied()).chain(cuts).min().unwrap_or(Nanos::MAX)
    }

    /// Runs the actions of a machine's hosts that are due. Returns the time of the next one.
    fn hosts_act(&mut self, side: usize) -> Nanos {
        for at in 0..self.both[side].programs.len() {
            if self.both[side].programs[at].acts_at.is_some_and(|acts_at| acts_at <= self.now) {
                self.host_acts(side, at as u32);
            }
        }
        let acts = self.both[side].programs.iter().filter_map(|program| program.acts_at);
        acts.min().unwrap_or(Nanos::MAX)
    }

    fn host_acts(&mut self, number: usize, at: u32) {
        let History { rng, now, hosts, .. } = self;
        let now = *now;
        let side = &mut self.both[number];
        let total = hosts.totals[number];
        let program = &mut side.programs[at as usize];
        let (own, peer) = program.ends;
        let is_abrupt = side.abrupt.contains(&own) || side.abrupt.contains(&peer);
        program.acts_at = None;
        let socket = &side.machine.sockets[&at];
        if socket.is_closed || socket.is_over {
            return;
        }
        if is_abrupt {
            let gives_up = *program
                .gives_up_at
                .get_or_insert_with(|| now + Nanos(rng.random_range(0..90_000_000_000)));
            if now >= gives_up || rng.random_bool(0.03) {
                return match rng.random_bool(0.5) {
                    true => side.abort(now, at),
                    false => side.close(now, at),
                };
            }
        }
        let before = socket.update();
        let left = (total - socket.wrote.len() as u64).min(socket.room());
        side.write(at, rng.random_range(0..=hosts.write_max).min(left));
        if side.programs[at as usize].paused_until <= now {
            side.read(at, rng.random_range(0..=hosts.read_max));
            if hosts.pauses > 0.0 && rng.random_bool(hosts.pauses) {
                side.programs[at as usize].paused_until =
                    now + Nanos(rng.random_range(0..hosts.pause_max.0));
            }
        }
        let socket = side.machine.socket(at);
        let (wrote, read) = (socket.wrote.len() as u64, socket.read.len() as u64);
        // Some FINs go with the last bytes, some follow them.
        socket.is_finished |= wrote == total && rng.random_bool(0.7);
        socket.is_eager |= rng.random_bool(0.02);
        let has_read = socket.peer_is_finished && socket.unread() == 0;
        if socket.is_finished && has_read {
            let peers = hosts.totals[1 - number];
            if read != peers && !is_abrupt {
                let what =
                    format!("end of stream was read after {read} bytes, but {peers} were written");
                side.breaks(Oracle::Bytes, what);
            }
            return side.close(now, at);
        }
        let can_write = wrote < total && socket.room() > 0;
        let can_read = socket.unread() > 0 || socket.peer_is_finished;
        let wants_end = wrote == total && !socket.is_finished;
        let has_moved = socket.update() != before;
        let program = &mut side.programs[at as usize];
        let after = now + Nanos(rng.random_range(1..=hosts.acts_every.0));
        let next = if can_write || wants_end {
            Some(after)
        } else if can_read && !has_read {
            Some(after.max(program.paused_until))
        } else {
            None
        };
        program.acts_at = [next, program.gives_up_at].into_iter().flatten().min();
        if has_moved {
            side.report_progress(now, at);
        }
    }
}

/// ECN of a history. Drawn from its own generator: all else is the same for a seed with and without ECN.
#[derive(Clone, Copy, Debug)]
struct Ecn {
    algorithms: [Algorithm; 2],
    /// Probability that the network marks an ECN-capable packet.
    ce_mark: f64,
    /// Probability that the network drops a SYN that asks for ECN.
    drops_asking_syns: f64,
}

impl Ecn {
    fn of(seed: u64) -> Ecn {
        let mut rng = Pcg32::seed_from_u64(!seed);
        let algorithms = [(); 2].map(|()| match rng.random_bool(0.6) {
            true => Algorithm::Dctcp,
            false => Algorithm::Reno,
        });
        let ce_mark = [0.0, 0.02, 0.2, 1.0][rng.random_range(0..4)];
        let drops_asking_syns = [0.0, 0.0, 0.5, 1.0][rng.random_range(0..4)];
        Ecn { algorithms, ce_mark, drops_asking_syns }
    }
}

/// Loss recovery of both sides: selective acknowledgements on both for half of the seeds.
fn recoveries(rng: &mut Pcg32) -> [By; 2] {
    match rng.random_range(0..6) {
        0 => [By::GoBackN; 2],
        1 => [By::GoBackN, By::Sack],
        2 => [By::Sack, By::GoBackN],
        _ => [By::Sack; 2],
    }
}

/// The time at which a history begins. For half of the seeds it is chosen so that the sequence numbers of one side of a
/// connection wrap soon.
fn start(rng: &mut Pcg32, kinds: &[Kind; 2], ends: &[SocketAddr; 2]) -> Nanos {
    let side = rng.random_range(0..4);
    let before = length(rng, 20_000) as u32;
    if side > 1 {
        return Nanos(rng.random_range(0..20_000_000_000_000));
    }
    let tuple = Tuple { local: ends[side], remote: ends[1 - side] };
    let first = kinds[side].setup.secrets.initial_sequence(&tuple, Nanos(0));
    // Sequence numbers follow a clock with a period of 4 us.
    let ticks = 0_u32.wrapping_sub(before).wrapping_sub(first.0);
    Nanos(u64::from(ticks) * 4_000)
}
