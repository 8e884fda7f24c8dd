use wave_sim::{experiment::*, paper::{self, Rung}};
fn show(name: &str, setup: &wave_sim::enclave::Setup, loads: &[f64], ranges: bool) {
    let overhead = paper::overhead(setup);
    for &l in loads {
        let t = std::time::Instant::now();
        let load = if ranges { paper::gets_and_ranges(l, overhead) } else { paper::gets(l, overhead) };
        let o = serve(setup, &load).unwrap();
        let rss = std::fs::read_to_string("/proc/self/status").unwrap().lines().find(|l| l.starts_with("VmHWM")).unwrap().to_owned();
        let h = &o.served.latencies[0];
        println!("{name} {l}: served {:.4} p50 {} p99 {} agent {:.2} at_once {:.2} kicks {} preempted {} refused {} {:?} cpu {:?} {:?} {rss}", o.served.finished_within as f64 / o.served.sent as f64, h.value_at_quantile(0.5), h.value_at_quantile(0.99), o.agent_busy(), o.at_once(), o.counters.kicks, o.counters.preempted, o.served.refused, o.counters.outcomes.iter().collect::<Vec<_>>(), t.elapsed(), (o.counters.lost_agents, o.counters.barks, o.counters.snapshots, o.counters.overflows));
    }
}
fn main() {
    let which: Vec<String> = std::env::args().skip(1).collect();
    let loads: Vec<f64> = which[1].split(',').map(|v| v.parse::<f64>().unwrap() * 1e3).collect();
    let policy = which.get(2).map_or("fifo", |s| s.as_str());
    let ranges = policy != "fifo";
    let setup = match which[0].as_str() {
        "onhost" => paper::on_host(15, true, policy),
        "w15" => paper::wave(15, Rung::Prestaged, policy),
        "w16" => paper::wave(16, Rung::Prestaged, policy),
        "w24" => paper::wave(24, Rung::Prestaged, policy),
        "w32" => paper::wave(32, Rung::Prestaged, policy),
        "w64" => paper::wave(64, Rung::Prestaged, policy),
        "w128" => paper::wave(128, Rung::Prestaged, policy),
        "w240" => paper::wave(240, Rung::Prestaged, policy),
        "upi3" => paper::over_upi(15, 3.0, policy),
        _ => paper::over_upi(15, 2.0, policy),
    };
    show(&which[0], &setup, &loads, ranges);
}
