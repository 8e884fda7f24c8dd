//! The open-loop load generator: submits each request when it is due, independent of earlier
//! requests, and reports when it could not.

use std::time::Duration;

use crate::arrivals::{Class, Load};
use crate::cpu::{monotonic_ns, yield_now};
use crate::recorder::{self, Recorder, Window};

/// A request, as submitted to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of the request in its run, counted from 0 without gaps.
    pub id: u64,
    /// Class of the request.
    pub class: Class,
    /// Due time, on [`monotonic_ns`]'s clock. Latency counts from it.
    pub intended_ns: u64,
    pub key: u64,
}

/// The server had no room for the request, which is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server has no room for another request")]
pub struct Refused;

/// A host that accepts requests. Neither call may block.
pub trait Server {
    /// Accepts a request, or refuses it if there is no room. A refused request counts as
    /// not served and is never retried.
    fn submit(&mut self, request: Request) -> Result<(), Refused>;

    /// Runs the server's work on the generator's thread. Called while no request is due, and after every
    /// [`BURST_MAX`] requests if requests are always due.
    fn between(&mut self) {}

    /// Whether the load continues after the end of its window. Requests that are due then count like all others. By default the
    /// load ends with its window.
    fn wants_more(&self) -> bool {
        false
    }

    /// Whether the load ends now, with the measurements made so far.
    fn ends_early(&self) -> bool {
        false
    }
}

/// Maximum number of due requests submitted without a break.
pub const BURST_MAX: u64 = 64;

/// Processes that share the generator's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// None: the generator spins on its own CPU.
    Own,
    /// An agent, or other processes: the generator yields between looks at the clock.
    Shared,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Duration of the measured part of the load.
    pub duration: Duration,
    /// Duration of the load before that.
    pub warm_up: Duration,
    /// Processes that share the CPU.
    pub seat: Seat,
    /// The load point is invalid if the p99 of the generator's own lag exceeds this.
    pub lag_p99_limit_ns: u64,
    /// The load point is invalid if its last request was submitted later than this.
    pub last_lag_limit_ns: u64,
    /// A request this late ends the run, as the generator will not catch up.
    pub give_up_lag_ns: u64,
}

impl Settings {
    /// The usual limits: 50 us for the p99 of lag, 1 ms for the last request, 1 s for giving up.
    pub fn new(duration: Duration, warm_up: Duration, seat: Seat) -> Settings {
        Settings {
            duration,
            warm_up,
            seat,
            lag_p99_limit_ns: 50_000,
            last_lag_limit_ns: 1_000_000,
            give_up_lag_ns: 1_000_000_000,
        }
    }
}

/// Reasons why a load point is not a measurement: the generator was not open-loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It submitted too many requests late.
    #[error("the generator lagged: p99 {}, limit {}", Span(*p99_ns), Span(*limit_ns))]
    Lagged { p99_ns: u64, limit_ns: u64 },
    /// It was behind when the load ended.
    #[error("the generator was behind at the end: {}, limit {}", Span(*lag_ns), Span(*limit_ns))]
    BehindAtEnd { lag_ns: u64, limit_ns: u64 },
    /// It fell so far behind that it gave up before the load ended.
    #[error("the generator gave up {} behind", Span(*lag_ns))]
    GaveUp {
        /// Lag of the request at which it gave up.
        lag_ns: u64,
    },
    /// No request was due after the warm-up.
    #[error("no request was due between the end of the warm-up and the end of the load")]
    NoRequest,
}

/// A time in nanoseconds, displayed in a suitable unit.
struct Span(u64);

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ns = self.0 as f64;
        match self.0 {
            0..10_000_000 => write!(f, "{:.0} us", ns / 1e3),
            10_000_000..10_000_000_000 => write!(f, "{:.0} ms", ns / 1e6),
            _ => write!(f, "{:.0} s", ns / 1e9),
        }
    }
}

/// The generator's report on a run.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub offered_per_second: f64,
    /// Start of the load, start of the measurement, and end.
    pub window: Window,
    /// Requests submitted, warm-up and refused ones included.
    pub submitted: u64,
    /// Half of the requests were submitted at most this late. Lag is counted after the warm-up.
    pub lag_p50_ns: u64,
    /// 99% of the requests were submitted at most this late.
    pub lag_p99_ns: u64,
    /// The latest request was submitted this late.
    pub lag_max_ns: u64,
    /// Reason why the load point is not a measurement, if so.
    pub invalid: Option<Invalid>,
}

/// Submits `load` to `server` from the calling thread for the warm-up and the duration of
/// `settings`, and counts into `recorder`, which it opens first.
///
/// A request is never submitted before it is due. Those that are due are all submitted, in
/// order: none is skipped because the generator or the server is behind. The load ends with its
/// window, or later ([`Server::wants_more`]). Returns when the last one is submitted; [`Recorder::drain`] waits for the answers.
pub fn run(
    load: Load,
    settings: &Settings,
    recorder: &Recorder,
    server: &mut impl Server,
) -> Report {
    let offered_per_second = load.rate_per_second();
    let mut lags = recorder::histogram();
    let start_ns = monotonic_ns();
    let from_ns = start_ns + nanoseconds(settings.warm_up);
    let mut window = Window { start_ns, from_ns, to_ns: from_ns + nanoseconds(settings.duration) };
    recorder.open(window);

    let mut submitted = 0;
    let mut in_burst = 0;
    let mut last_lag_ns = 0;
    let mut gave_up = None;
    'load: for arrival in load {
        let request = Request {
            id: submitted,
            class: arrival.class,
            intended_ns: start_ns.saturating_add(arrival.at_ns),
            key: arrival.key,
        };
        if server.ends_early() || request.intended_ns >= window.to_ns && !server.wants_more() {
            break;
        }
        // Ends when the clock reaches the due time.
        let mut now_ns = monotonic_ns();
        while now_ns < request.intended_ns {
            if server.ends_early() {
                break 'load;
            }
            step_aside(settings.seat, server);
            in_burst = 0;
            now_ns = monotonic_ns();
        }
        if in_burst == BURST_MAX {
            step_aside(settings.seat, server);
            in_burst = 0;
            now_ns = monotonic_ns();
        }
        let lag_ns = now_ns - request.intended_ns;
        if lag_ns >= settings.give_up_lag_ns {
            gave_up = Some(Invalid::GaveUp { lag_ns });
            break;
        }
        let refused = server.submit(request).is_err();
        recorder.submitted(&request, refused);
        if request.intended_ns >= from_ns {
            lags.saturating_record(lag_ns);
        }
        last_lag_ns = lag_ns;
        submitted += 1;
        in_burst += 1;
    }

    if server.ends_early() {
        window.to_ns = window.to_ns.min(monotonic_ns()).max(window.from_ns);
        recorder.end_early(window.to_ns);
    }
    let lag_p99_ns = lags.value_at_quantile(0.99);
    let invalid = if gave_up.is_some() {
        gave_up
    } else if lags.is_empty() {
        Some(Invalid::NoRequest)
    } else if lag_p99_ns > settings.lag_p99_limit_ns {
        Some(Invalid::Lagged { p99_ns: lag_p99_ns, limit_ns: settings.lag_p99_limit_ns })
    } else if last_lag_ns > settings.last_lag_limit_ns {
        Some(Invalid::BehindAtEnd { lag_ns: last_lag_ns, limit_ns: settings.last_lag_limit_ns })
    } else {
        None
    };
    Report {
        offered_per_second,
        window,
        submitted,
        lag_p50_ns: lags.value_at_quantile(0.5),
        lag_p99_ns,
        lag_max_ns: lags.max(),
        invalid,
    }
}

#[inline]
fn step_aside(seat: Seat, server: &mut impl Server) {
    server.between();
    match seat {
        Seat::Own => std::hint::spin_loop(),
        Seat::Shared => yield_now(),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arrivals::Mix;

    /// Records each request with its time, and has limited room.
    #[derive(Default)]
    struct Notes {
        requests: Vec<(Request, u64)>,
        room: usize,
        looks: u64,
        in_burst: u64,
        longest_burst: u64,
    }

    impl Server for Notes {
        fn submit(&mut self, request: Request) -> Result<(), Refused> {
            self.requests.push((request, monotonic_ns()));
            self.in_burst += 1;
            self.longest_burst = self.longest_burst.max(self.in_burst);
            if self.requests.len() > self.room {
                return Err(Refused);
            }
            Ok(())
        }

        fn between(&mut self) {
            self.looks += 1;
            self.in_burst = 0;
        }
    }

    /// A run that is not cut short, however slow the machine is.
    fn settings(duration_ms: u64, warm_up_ms: u64, seat: Seat) -> Settings {
        Settings {
            give_up_lag_ns: u64::MAX,
            ..Settings::new(
                Duration::from_millis(duration_ms),
                Duration::from_millis(warm_up_ms),
                seat,
            )
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_request_is_submitted_once_in_order_and_not_early(
            rate in 1_000f64..3_000_000.0,
            duration_ms in 0u64..10,
            warm_up_ms in 0u64..5,
            room in prop::sample::select(vec![0usize, 3, usize::MAX]),
            shared: bool,
            seed: u64,
        ) {
            let seat = if shared { Seat::Shared } else { Seat::Own };
            let mix = Mix::get_and_range();
            let recorder = Recorder::new(&mix, 1);
            let load = Load::new(rate, mix, 1_000, seed).unwrap();
            let mut server = Notes { room, ..Notes::default() };
            let settings = settings(duration_ms, warm_up_ms, seat);
            let report = run(load.clone(), &settings, &recorder, &mut server);

            let window = report.window;
            prop_assert_eq!(window.from_ns - window.start_ns, warm_up_ms * 1_000_000);
            prop_assert_eq!(window.to_ns - window.from_ns, duration_ms * 1_000_000);
            let due = load.take_while(|arrival| window.start_ns + arrival.at_ns < window.to_ns);
            let expected: Vec<Request> = due
                .enumerate()
                .map(|(id, arrival)| Request {
                    id: id as u64,
                    class: arrival.class,
                    intended_ns: window.start_ns + arrival.at_ns,
                    key: arrival.key,
                })
                .collect();
            let got: Vec<Request> = server.requests.iter().map(|&(request, _)| request).collect();
            prop_assert_eq!(&got, &expected);
            for (request, at_ns) in &server.requests {
                prop_assert!(*at_ns >= request.intended_ns);
            }
            prop_assert!(server.longest_burst <= BURST_MAX);

            let recorded = recorder.collect();
            let measured = |request: &&Request| request.intended_ns >= window.from_ns;
            let sent = expected.iter().filter(measured).count() as u64;
            let refused = expected.iter().skip(room).filter(measured).count() as u64;
            prop_assert_eq!((recorded.sent, recorded.refused), (sent, refused));
            prop_assert_eq!(report.submitted, expected.len() as u64);
            prop_assert_eq!(report.invalid == Some(Invalid::NoRequest), sent == 0);
        }
    }

    fn run_with(settings: &Settings, server: &mut impl Server) -> Report {
        let recorder = Recorder::new(&Mix::get_only(), 1);
        let load = Load::new(50_000.0, Mix::get_only(), 1, 7).unwrap();
        run(load, settings, &recorder, server)
    }

    /// Blocks the generator for a while with each request, which servers must not do.
    struct Slow;

    impl Server for Slow {
        fn submit(&mut self, request: Request) -> Result<(), Refused> {
            let until_ns = request.intended_ns + 10_000_000;
            while monotonic_ns() < until_ns {
                std::hint::spin_loop();
            }
            Ok(())
        }
    }

    #[test]
    fn delayed_generator_reports_an_invalid_point() {
        let mut limits = settings(5, 0, Seat::Own);
        limits.last_lag_limit_ns = u64::MAX;
        let report = run_with(&limits, &mut Slow);
        assert!(matches!(report.invalid, Some(Invalid::Lagged { .. })));

        limits.lag_p99_limit_ns = u64::MAX;
        limits.last_lag_limit_ns = 1_000_000;
        let report = run_with(&limits, &mut Slow);
        assert!(matches!(report.invalid, Some(Invalid::BehindAtEnd { .. })));

        limits.give_up_lag_ns = 2_000_000;
        let report = run_with(&limits, &mut Slow);
        assert!(matches!(report.invalid, Some(Invalid::GaveUp { .. })));
    }

    /// Wants ten times as many requests as are due in its window, which ends at once.
    struct Hungry(u64);

    impl Server for Hungry {
        fn submit(&mut self, _: Request) -> Result<(), Refused> {
            self.0 += 1;
            Ok(())
        }

        fn wants_more(&self) -> bool {
            self.0 < 500
        }
    }

    /// Ends the load after this many requests.
    struct Ended(u64);

    impl Server for Ended {
        fn submit(&mut self, _: Request) -> Result<(), Refused> {
            self.0 -= 1;
            Ok(())
        }

        fn ends_early(&self) -> bool {
            self.0 == 0
        }
    }

    #[test]
    fn load_that_ends_early_is_measured_until_its_end() {
        for seat in [Seat::Own, Seat::Shared] {
            // Two hours, unless ended early.
            let report = run_with(&settings(7_200_000, 0, seat), &mut Ended(100));
            assert_eq!(report.submitted, 100);
            let window = report.window;
            assert!(window.from_ns < window.to_ns && window.to_ns <= monotonic_ns());
        }
        // It ends within the warm-up.
        let report = run_with(&settings(1, 7_200_000, Seat::Shared), &mut Ended(100));
        assert_eq!(report.invalid, Some(Invalid::NoRequest));
        assert_eq!(report.window.from_ns, report.window.to_ns);
    }

    #[test]
    fn load_continues_past_its_window_while_the_server_wants_more() {
        let mut server = Hungry(0);
        let report = run_with(&settings(1, 0, Seat::Shared), &mut server);
        assert!(server.0 >= 500 && report.submitted == server.0, "{report:?}");
    }

    #[test]
    fn server_gets_its_turn_while_no_request_is_due() {
        let mut server = Notes::default();
        run_with(&settings(5, 0, Seat::Shared), &mut server);
        assert!(server.looks > 0);
    }
}
