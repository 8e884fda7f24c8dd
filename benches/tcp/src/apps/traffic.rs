//! The client's load on a server: a closed loop, or a Poisson process with a given rate.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rand::{Rng, SeedableRng};
use rand_distr::Exp1;
use rand_pcg::Pcg64Mcg;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::thread::set_current_timer_slack;

use super::exchange::App;
use crate::client::PATIENCE;
use crate::network::packets;
use crate::process::answer;

/// Longest time for a server to start.
const START_PATIENCE: Duration = Duration::from_secs(60);
const START_CHECK_EVERY: Duration = Duration::from_millis(20);
/// Longest wait for events.
const TURN_MAX: Duration = Duration::from_millis(2);
const BUFFER_BYTES: usize = 64 << 10;
/// Significant digits of recorded latencies.
const DIGITS: u8 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    pub app: App,
    /// Length of an answer in bytes.
    pub answer_bytes: usize,
    pub connections: usize,
    pub warm_up: Duration,
    pub measured: Duration,
    /// `None` is a closed loop: each answer is followed by the next batch.
    pub pace: Option<Pace>,
}

/// Arrivals of batches as a Poisson process.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub batches_per_second: f64,
    pub seed: u64,
}

impl Traffic {
    /// The command line for the client, with the interface whose packets it must count.
    pub fn to_line(self, address: &str, interface: &str) -> String {
        let Traffic { app, answer_bytes, connections, warm_up, measured, pace } = self;
        let (rate, seed) = pace.map_or((0.0, 0), |pace| (pace.batches_per_second, pace.seed));
        format!(
            "traffic {interface} {address}:{} {} {answer_bytes} {connections} {} {} {rate} {seed}",
            app.port(),
            app.name(),
            warm_up.as_micros(),
            measured.as_micros()
        )
    }

    pub fn from_words(words: &[&str]) -> Option<(SocketAddr, Traffic)> {
        let [address, app, answer_bytes, connections, warm_up, measured, rate, seed] = words else {
            return None;
        };
        let micros = |word: &str| Some(Duration::from_micros(word.parse().ok()?));
        let pace = Pace { batches_per_second: rate.parse().ok()?, seed: seed.parse().ok()? };
        let traffic = Traffic {
            app: App::of_name(app)?,
            answer_bytes: answer_bytes.parse().ok()?,
            connections: connections.parse().ok()?,
            warm_up: micros(warm_up)?,
            measured: micros(measured)?,
            pace: (pace.batches_per_second > 0.0).then_some(pace),
        };
        Some((address.parse().ok()?, traffic))
    }
}

/// Waits until a server serves, and stores its value. Returns the length of its answers.
pub fn prepare(app: App, address: SocketAddr) -> Result<usize, String> {
    let failed = |error: io::Error| format!("{} at {address}: {error}", app.name());
    let end = Instant::now() + START_PATIENCE;
    let mut stream = loop {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > end => return Err(failed(error)),
            Err(_) => sleep(START_CHECK_EVERY),
        }
    };
    stream.set_read_timeout(Some(START_PATIENCE)).map_err(failed)?;
    let mut came = Vec::new();
    if let Some((bytes, expected)) = app.set_up() {
        stream.write_all(&bytes).map_err(failed)?;
        came.resize(expected.len(), 0);
        stream.read_exact(&mut came).map_err(failed)?;
        if came != expected {
            return Err(failed(io::Error::other("the server did not store the value")));
        }
        came.clear();
    }
    stream.write_all(&app.request()).map_err(failed)?;
    while app.answer_bytes(&came).is_none_or(|whole| came.len() < whole) {
        let mut part = [0; 4096];
        match stream.read(&mut part).map_err(failed)? {
            0 => return Err(failed(ErrorKind::UnexpectedEof.into())),
            count => came.extend_from_slice(&part[..count]),
        }
    }
    if app.is_answer(&came) {
        Ok(came.len())
    } else {
        Err(failed(io::Error::other("unexpected answer")))
    }
}

/// Generates the load. Prints `begin` after the warm-up, and at the end the number of answers since then, nanoseconds, and packets.
/// If paced, it also prints the median and the 99th percentile of latencies in nanoseconds.
pub fn generate(streams: Vec<TcpStream>, traffic: &Traffic, interface: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the bench's client: {error}");
    let start = Instant::now();
    let mut source = Source::new(streams, traffic, start).map_err(|error| failed(&error))?;
    let mut begun: Option<(Instant, u64, u64)> = None;
    let mut counted: Option<String> = None;
    loop {
        source.turn().map_err(|error| failed(&error))?;
        let now = Instant::now();
        if now.duration_since(source.latest) > PATIENCE {
            return Err(failed(&"no answer for 20 s"));
        }
        match (begun, &counted) {
            (None, _) if now.duration_since(start) >= traffic.warm_up => {
                begun = Some((now, source.answered, packets(interface)?));
                source.recorded_from = Some(now);
                answer("begin")?;
            }
            // On a busy machine, there may be no answer yet: then the chunk continues, on any stack.
            (Some((at, first, packets_first)), None)
                if now.duration_since(at) >= traffic.measured
                    && source.answered > first
                    && (traffic.pace.is_none() || !source.latencies.is_empty()) =>
            {
                let ns = now.duration_since(at).as_nanos();
                let packets = packets(interface)? - packets_first;
                counted = Some(format!("{} {ns} {packets}", source.answered - first));
                source.arrivals = None;
            }
            _ => {}
        }
        // Requests that were due in the measured time count, however late their answers are.
        if let Some(line) = &counted
            && (traffic.pace.is_none() || source.is_drained())
        {
            let latencies = &source.latencies;
            return match traffic.pace {
                None => answer(line),
                Some(_) => {
                    let [p50, p99] = [0.5, 0.99].map(|share| latencies.value_at_quantile(share));
                    answer(&format!("{line} {p50} {p99}"))
                }
            };
        }
    }
}

/// The source of the load: connections, and the batches that are due on them.
struct Source {
    traffic: Traffic,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    batch: Vec<u8>,
    /// `None` in a closed loop, and after the last arrival.
    arrivals: Option<Arrivals>,
    /// Due times of batches that wait for an idle connection.
    waiting: VecDeque<Instant>,
    /// Connections without a batch; the one idle for longest is first.
    idle: VecDeque<usize>,
    answered: u64,
    /// Last time at which an answer arrived or no batch was in flight.
    latest: Instant,
    /// Latencies of batches due from this time on are recorded.
    recorded_from: Option<Instant>,
    latencies: Histogram<u64>,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    due: Instant,
    /// Bytes received so far of the answers to a batch.
    came: usize,
}

/// Generates the times at which batches are due.
struct Arrivals {
    next: Instant,
    gap_seconds: f64,
    random: Pcg64Mcg,
}

impl Arrivals {
    fn new(pace: Pace, start: Instant) -> Arrivals {
        let random = Pcg64Mcg::seed_from_u64(pace.seed);
        let mut arrivals =
            Arrivals { next: start, gap_seconds: pace.batches_per_second.recip(), random };
        arrivals.advance();
        arrivals
    }

    fn advance(&mut self) {
        let gap: f64 = self.random.sample(Exp1);
        self.next += Duration::from_secs_f64(gap * self.gap_seconds);
    }
}

impl Source {
    fn new(streams: Vec<TcpStream>, traffic: &Traffic, start: Instant) -> io::Result<Source> {
        // With the default timer slack, sleeps end up to 50 us late.
        set_current_timer_slack(NonZeroU64::new(1))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(streams.len());
        for (at, stream) in streams.into_iter().enumerate() {
            let data = epoll::EventData::new_u64(at as u64);
            epoll::add(&epoll, stream.as_fd(), data, epoll::EventFlags::IN)?;
            connections.push(Connection { stream, due: start, came: 0 });
        }
        let mut source = Source {
            traffic: *traffic,
            epoll,
            batch: traffic.app.request().repeat(traffic.app.batch()),
            arrivals: traffic.pace.map(|pace| Arrivals::new(pace, start)),
            waiting: VecDeque::new(),
            idle: (0..connections.len()).collect(),
            connections,
            answered: 0,
            latest: start,
            recorded_from: None,
            latencies: Histogram::new(DIGITS).map_err(io::Error::other)?,
            events: Vec::with_capacity(256),
            buffer: vec![0; BUFFER_BYTES],
        };
        if traffic.pace.is_none() {
            source.idle.clear();
            for connection in &mut source.connections {
                connection.ask(&source.batch, start)?;
            }
        }
        Ok(source)
    }

    fn is_drained(&self) -> bool {
        self.waiting.is_empty() && self.idle.len() == self.connections.len()
    }

    /// Sends the batches that are due, and processes answers until the next batch is due.
    fn turn(&mut self) -> io::Result<()> {
        let timeout = self.ask_due()?;
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let at = event.data.u64() as usize;
            let connection = &mut self.connections[at];
            if !connection.hear(&self.traffic, &mut self.buffer)? {
                continue;
            }
            let now = Instant::now();
            self.latest = now;
            self.answered += self.traffic.app.batch() as u64;
            if self.traffic.pace.is_none() {
                connection.ask(&self.batch, now)?;
                continue;
            }
            self.idle.push_back(at);
            if self.recorded_from.is_some_and(|from| connection.due >= from) {
                let latency = now.duration_since(connection.due).as_nanos() as u64;
                self.latencies.record(latency).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Sends the due batches on idle connections. Returns the time until the next batch is due.
    fn ask_due(&mut self) -> io::Result<Duration> {
        let now = Instant::now();
        let mut until_next = TURN_MAX;
        if let Some(arrivals) = &mut self.arrivals {
            while arrivals.next <= now {
                self.waiting.push_back(arrivals.next);
                arrivals.advance();
            }
            until_next = until_next.min(arrivals.next.duration_since(now));
        }
        while let Some(&due) = self.waiting.front()
            && let Some(at) = self.idle.pop_front()
        {
            self.waiting.pop_front();
            self.connections[at].ask(&self.batch, due)?;
        }
        if self.traffic.pace.is_some() && self.is_drained() {
            self.latest = now;
        }
        Ok(until_next)
    }
}

impl Connection {
    /// Writes a batch. The connection has room, because the previous batch has been answered.
    fn ask(&mut self, batch: &[u8], due: Instant) -> io::Result<()> {
        (self.due, self.came) = (due, 0);
        self.stream.write_all(batch)
    }

    /// Reads answers. Returns whether the batch is answered completely.
    fn hear(&mut self, traffic: &Traffic, buffer: &mut [u8]) -> io::Result<bool> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let head = traffic.app.answer_head();
        let seen = count.min(head.len());
        if self.came == 0 && buffer[..seen] != head[..seen] {
            return Err(io::Error::other("unexpected first bytes of an answer"));
        }
        self.came += count;
        let whole = traffic.answer_bytes * traffic.app.batch();
        if self.came > whole {
            return Err(io::Error::other("an answer is longer than the first answer"));
        }
        Ok(self.came == whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_command_lines_decode_to_themselves() {
        let pace = Pace { batches_per_second: 1234.5, seed: 7 };
        let traffic = Traffic {
            app: App::RedisPipelined,
            answer_bytes: 71,
            connections: 64,
            warm_up: Duration::from_millis(100),
            measured: Duration::from_millis(500),
            pace: Some(pace),
        };
        for traffic in [traffic, Traffic { pace: None, ..traffic }] {
            let line = traffic.to_line("10.0.0.1", "x");
            let words: Vec<&str> = line.split_whitespace().collect();
            let (address, read) = Traffic::from_words(&words[2..]).unwrap();
            assert_eq!(address, SocketAddr::from(([10, 0, 0, 1], 6379)));
            assert_eq!(format!("{read:?}"), format!("{traffic:?}"));
        }
        assert!(Traffic::from_words(&["10.0.0.1:1", "none"]).is_none());
    }

    #[test]
    fn arrivals_have_the_given_rate_and_are_equal_for_equal_seeds() {
        let start = Instant::now();
        let mut both =
            [1, 1].map(|seed| Arrivals::new(Pace { batches_per_second: 1e4, seed }, start));
        for arrivals in &mut both {
            (0..20_000).for_each(|_| arrivals.advance());
        }
        assert_eq!(both[0].next, both[1].next);
        // Mean 2 s; the standard deviation of the sum is 0.014 s.
        let seconds = both[0].next.duration_since(start).as_secs_f64();
        assert!((1.9..2.1).contains(&seconds), "{seconds}");
    }
}
