//! One run of the whole path: database, service, generator, baseline pool, recorder, point.

use std::sync::Arc;
use std::time::Duration;

use wave_process::cpus;
use wave_workloads::arrivals::{Load, Mix};
use wave_workloads::generator::{self, Seat};
use wave_workloads::linux_threads::{self, Pool};
use wave_workloads::point::Point;
use wave_workloads::recorder::{Recorder, decode};
use wave_workloads::rocksdb::Database;
use wave_workloads::service::Calibrated;

#[test]
fn every_request_sent_is_accounted_for() {
    let mut database = Database::open(None).unwrap();
    database.fill(10_000, 64, |_, _| {}).unwrap();
    let service = Calibrated::new(database, Duration::from_millis(1)).unwrap();
    let keys = service.database().keys();

    let mix = Mix::get_only();
    let pool =
        linux_threads::Settings { threads: 4, cpus: cpus::allowed().unwrap(), queue_bound: 16 };
    let recorder = Arc::new(Recorder::new(&mix, pool.threads));
    let theirs = recorder.clone();
    let mut pool = Pool::start(&pool, move |request, thread| {
        let served = service.get(request.key).unwrap();
        assert!(served.found);
        theirs.done(thread, request);
    })
    .unwrap();

    // Far more than four threads can serve at 1 ms per request, so that some are refused.
    let load = Load::new(20_000.0, mix, keys, 1).unwrap();
    let settings = generator::Settings {
        give_up_lag_ns: u64::MAX,
        ..generator::Settings::new(
            Duration::from_millis(100),
            Duration::from_millis(20),
            Seat::Shared,
        )
    };
    let report = generator::run(load, &settings, &recorder, &mut pool);
    let stopped = pool.stop();
    assert_eq!(stopped.panicked, 0);

    let recorded = recorder.collect();
    assert_eq!(recorded.outstanding, 0);
    assert_eq!(recorded.stale + recorded.unrecorded, 0);
    assert_eq!(recorded.done + recorded.refused, recorded.sent);
    assert_eq!(recorded.done + recorded.in_warm_up, stopped.accepted);
    let point = Point::new(&report, &recorded);
    assert!(point.refused > 0);
    let get = point.latency("GET").unwrap();
    assert_eq!(get.count, point.done);
    assert!(get.count == 0 || get.min_ns >= 999_000, "no answer before its service time");
    let histogram = decode(&point.classes[0].histogram).unwrap();
    assert_eq!(histogram.len(), get.count);
}
