//! The cost of a worker's waiting: all CPU time of its thread, and the latency, at rates that leave it idle most of the time.
//!
//! At each rate, four servers take turns: tonic; a worker and an agent that poll for longer than most gaps between calls; a worker
//! with default options and such an agent; and both with default options.

use serde_json::{Value, json};
use wave_compare::PerRound;

use super::process::Measured;
use super::{AS_SHIPPED, POLLING, Part, Plan, Row, Shape, TONIC, WAITING, run_chunks};

/// Call rates, in calls per second.
const RATES: [u32; 3] = [1_000, 10_000, 50_000];
const SERVERS: [(&str, usize); 4] =
    [("tonic", TONIC), ("polling", POLLING), ("waiting", WAITING), ("as_shipped", AS_SHIPPED)];

/// For each rate, a row per server.
pub struct Waiting(Vec<Vec<Row>>);

impl Waiting {
    pub fn new(servers: &[Measured]) -> Result<Waiting, String> {
        let row = |server, rate: u32| Row::new((server, Shape::Open(rate.into())), servers);
        let rows = |rate| SERVERS.iter().map(|(_, server)| row(*server, rate)).collect();
        RATES.into_iter().map(rows).collect::<Result<_, String>>().map(Waiting)
    }

    pub fn chunks(
        &mut self,
        servers: &mut [Measured],
        plan: &Plan,
        round: u32,
    ) -> Result<(), String> {
        self.0.iter_mut().try_for_each(|rows| run_chunks(rows, servers, plan, round))
    }

    pub fn report(&self, report: &mut Value) {
        let (host, p50, p99): (Part, Part, Part) =
            (|chunk| chunk.host, |chunk| chunk.p50, |chunk| chunk.p99);
        let all: Part = |chunk| chunk.host + chunk.agent;
        for (rate, rows) in RATES.iter().zip(&self.0) {
            let of = |at: usize, part: Part| PerRound::of(&rows[at].chunks, part);
            let ratio =
                |part: Part, at: usize, by: usize| of(at, part).over(&of(by, part)).estimate();
            let [tonic, polling, waiting, as_shipped] = [0, 1, 2, 3];
            let ratios = [
                ("total_cpu_with_polling_ratio", ratio(all, as_shipped, tonic)),
                ("host_cpu_with_waiting_ratio_vs_tonic", ratio(host, waiting, tonic)),
                ("host_cpu_with_polling_ratio_vs_tonic", ratio(host, polling, tonic)),
                ("p50_ratio_vs_polling", ratio(p50, waiting, polling)),
                ("p50_ratio_vs_tonic", ratio(p50, as_shipped, tonic)),
            ];
            for (name, ratio) in ratios {
                report[name][rate.to_string()] = ratio;
            }
            for (at, (name, _)) in SERVERS.iter().enumerate() {
                report["at_rates"][rate.to_string()][name] = json!({
                    "host_thread_ns": of(at, host).spread(),
                    "all_ns": of(at, all).spread(),
                    "p50_ns": of(at, p50).spread(),
                    "p99_ns": of(at, p99).spread(),
                });
            }
        }
    }
}
