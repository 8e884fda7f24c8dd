//! Load reports (ORCA, gRFC A51), for clients that balance load: in the trailers of calls, and on streams of the front's own service,
//! `xds.service.orca.v3.OpenRcaService`.
//!
//! The agent has the queues, so it knows the load without asking the host. Utilization and rates are averages over about a second.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::HeaderMap;
use http::header::HeaderName;
use prost::Message;
use wave_core::clock::Nanos;
use wave_rpc::dispatch::Queues;
use wave_rpc::status::{Code, Status};

use crate::metadata;

/// Path of the service's only method.
pub const PATH: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";
/// The trailer with a serialized [`Report`].
const TRAILER: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// Shortest and default interval between reports on a stream.
const INTERVAL_MIN: Nanos = Nanos::from_millis(100);
const INTERVAL: Nanos = Nanos::from_millis(10_000);
/// Time constant of the averages: after this long, a sample's weight has fallen to 1/e.
const MEMORY: Nanos = Nanos::from_millis(1_000);
/// Shortest time between two samples of the queues.
pub const POLL_EVERY: Nanos = Nanos::from_millis(1);

/// `xds.data.orca.v3.OrcaLoadReport`, without the fields that a front does not know.
#[derive(Clone, PartialEq, Message)]
pub struct Report {
    /// Calls that end per second, whatever their status.
    #[prost(double, tag = "6")]
    pub rps_fractional: f64,
    /// Calls per second that end with a status other than OK.
    #[prost(double, tag = "7")]
    pub eps: f64,
    /// Figures by name: see [`Meter::report`].
    #[prost(btree_map = "string, double", tag = "8")]
    pub named_metrics: BTreeMap<String, f64>,
    /// Calls per worker: those that workers run or have queued, and those that wait for a worker. More than 1 if calls wait.
    #[prost(double, tag = "9")]
    pub application_utilization: f64,
}

/// `xds.service.orca.v3.OrcaLoadReportRequest`, without the names of costs: a front knows none.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Time between two reports.
    #[prost(message, optional, tag = "1")]
    pub report_interval: Option<prost_types::Duration>,
}

/// The interval that a request asks for, clamped to what a front supports.
pub fn interval(message: &[u8]) -> Result<Nanos, Status> {
    let request = Request::decode(message).map_err(|error| {
        Status::new(Code::InvalidArgument, format!("not an OrcaLoadReportRequest: {error}"))
    })?;
    let Some(asked) = request.report_interval else { return Ok(INTERVAL) };
    let (seconds, nanos) = (asked.seconds.max(0) as u64, asked.nanos.max(0) as u64);
    let asked = Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos));
    // The maximum is a year, which stands for never and does not overflow.
    Ok(asked.clamp(INTERVAL_MIN, Nanos::from_millis(365 * 86_400_000)))
}

/// Adds a load report to the trailers, unless the handler has set its own.
pub fn add(trailers: &mut HeaderMap, report: &[u8]) {
    if !trailers.contains_key(&TRAILER) {
        trailers.insert(TRAILER, metadata::encode(report));
    }
}

/// The load of the host, sampled on the core that has its queues, and read by all cores.
#[derive(Debug, Default)]
pub struct Meter(Mutex<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    sampled_at: Nanos,
    queues: Queues,
    /// Calls that have ended since the last sample.
    ended: u64,
    /// Calls among them that ended with an error.
    failed: u64,
    utilization: f64,
    rps: f64,
    eps: f64,
}

impl Meter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample of the queues; zeros without a host.
    pub fn sample(&self, now: Nanos, queues: Queues) {
        let mut state = self.state();
        *state = State { queues, ..state.at(now) };
    }

    /// Counts a call that has ended.
    pub fn end(&self, is_ok: bool) {
        let mut state = self.state();
        state.ended += 1;
        state.failed += u64::from(!is_ok);
    }

    /// The load report at `now`, serialized.
    pub fn report(&self, now: Nanos) -> Bytes {
        let state = *self.state();
        let Queues { workers, at_workers, waiting } = state.queues;
        let state = state.at(now);
        let figures = [
            ("wave.workers", f64::from(workers)),
            ("wave.at_workers", f64::from(at_workers)),
            ("wave.waiting", f64::from(waiting)),
        ];
        let report = Report {
            rps_fractional: state.rps,
            eps: state.eps,
            named_metrics: figures.map(|(name, value)| (name.to_owned(), value)).into(),
            application_utilization: state.utilization,
        };
        report.encode_to_vec().into()
    }
}

impl State {
    /// The averages extrapolated to `now`, as if the queues had not changed since the last sample.
    fn at(self, now: Nanos) -> State {
        let seconds = now.since(self.sampled_at).0 as f64 / 1e9;
        if seconds <= 0.0 {
            return self;
        }
        let weight = 1.0 - (-seconds / (MEMORY.0 as f64 / 1e9)).exp();
        let towards = |average: f64, value: f64| average + (value - average) * weight;
        let Queues { workers, at_workers, waiting } = self.queues;
        let calls = f64::from(at_workers) + f64::from(waiting);
        let per_worker = if workers == 0 { 0.0 } else { calls / f64::from(workers) };
        State {
            sampled_at: now,
            queues: self.queues,
            ended: 0,
            failed: 0,
            utilization: towards(self.utilization, per_worker),
            rps: towards(self.rps, self.ended as f64 / seconds),
            eps: towards(self.eps, self.failed as f64 / seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(meter: &Meter, now: Nanos) -> Report {
        Report::decode(meter.report(now)).unwrap()
    }

    #[test]
    fn averages_follow_queues_and_rates_and_decay_between_samples() {
        let meter = Meter::default();
        let queues = Queues { workers: 4, at_workers: 4, waiting: 2 };
        // 200 calls a second for ten seconds; every fourth call fails.
        for at in 0..2_000_u64 {
            meter.sample(Nanos::from_millis(at * 5), queues);
            meter.end(at % 4 != 0);
        }
        let now = Nanos::from_millis(10_000);
        let busy = read(&meter, now);
        assert!((busy.application_utilization - 1.5).abs() < 0.01, "{busy:?}");
        assert!((busy.rps_fractional - 200.0).abs() < 5.0, "{busy:?}");
        assert!((busy.eps - 50.0).abs() < 3.0, "{busy:?}");
        assert_eq!(busy.named_metrics["wave.waiting"], 2.0);
        // Reading changes nothing.
        assert_eq!(read(&meter, now), busy);
        meter.sample(now, Queues { workers: 4, ..Queues::default() });
        let idle = read(&meter, now + Nanos::from_millis(20_000));
        assert!(idle.application_utilization < 1e-3 && idle.rps_fractional < 1e-3, "{idle:?}");
    }

    #[test]
    fn intervals_are_clamped_to_what_a_front_supports() {
        let ask = |seconds, nanos| {
            let report_interval = Some(prost_types::Duration { seconds, nanos });
            interval(&Request { report_interval }.encode_to_vec()).unwrap()
        };
        assert_eq!(ask(0, 1), INTERVAL_MIN);
        assert_eq!(ask(-5, -1), INTERVAL_MIN);
        assert_eq!(ask(2, 500_000_000), Nanos::from_millis(2_500));
        assert!(ask(i64::MAX, i32::MAX) > ask(86_400, 0));
        assert_eq!(interval(&[]).unwrap(), INTERVAL);
        assert_eq!(interval(&[0xff]).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn load_report_of_a_handler_is_kept() {
        let mut trailers = HeaderMap::new();
        add(&mut trailers, &[8, 1]);
        assert_eq!(trailers["endpoint-load-metrics-bin"], "CAE");
        add(&mut trailers, &[8, 2]);
        assert_eq!(trailers["endpoint-load-metrics-bin"], "CAE");
    }
}
