use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::link::*;
use wave_links::costs::Costs;
use wave_sim::{agent::AgentSetup, enclave::*, experiment::*, machine::Machine, requests::*};

type P = Vec<f64>;
const NAMES: [&str; 11] = ["decision_words_more","message_words_more","switch_after","line_drain","agent_message","request_overhead","crossings","prefetch_residue","onhost_flight","switch_before","agent_decision"];
fn setup(p: &P, cores: u16, rung: usize) -> Setup {
    let mut config = Config::pcie(cores);
    config.contexts = 5; config.messages.entries = 256; config.spin = Nanos(0);
    config.prestage = if rung == 3 || rung == 5 { 1 } else { 0 };
    if rung < 2 { config.messages.host = Mapping::Uncached; config.decisions.host = Mapping::Uncached; }
    if rung < 1 { config.messages.agent = Mapping::Uncached; config.decisions.agent = Mapping::Uncached; }
    let mut machine = Machine::builtin("ghost").unwrap();
    let mut costs = Costs::builtin(if rung >= 4 { "on-host" } else { "mount-evans" }).unwrap();
    machine.decision_words_read_more.value = p[0]; machine.decision_words_written_more.value = 2.0;
    machine.message_words_more.value = p[1];
    machine.switch_after.value = p[2];
    if rung < 4 { costs.line_drain.ns = p[3]; machine.prefetch_residue.value = p[7]; } else { costs.kick_flight.ns = p[8]; costs.kick_send.ns = 0.0; }
    machine.agent_message.value = p[4];
    machine.request_overhead.value = p[5];
    machine.crossings_per_request.value = p[6];
    machine.switch_before.value = p[9];
    machine.agent_decision.value = p[10];
    if rung >= 4 { machine.agent_message.value = std::env::var("OHM").map_or(198.0, |v| v.parse().unwrap()); machine.agent_decision.value = 770.0; }
    Setup { config, costs, machine, agent: AgentSetup { policy: "fifo".into(), ghz: 3.0, parks: false }, prefetch: rung == 3, seed: 1 }
}
fn load(p: &P, cs: u32, rate: f64, ms: u64) -> Load {
    let overhead = Nanos((p[5] + (p[6] - 1.0) * cs as f64) as u64);
    Load { per_second: rate, classes: vec![Class { name: "GET".into(), weight: 1.0, service: Service::Fixed(Nanos(10_000)) }], threads: Threads::Pool(200), overhead, warmup: Nanos::from_millis(5), measure: Nanos::from_millis(ms), generators: 4 }
}
fn cs(p: &P, rung: usize) -> (u32, u32) {
    let s = switches(&setup(p, 1, rung), 3, Nanos(10_000), Nanos::from_millis(3)).unwrap();
    (Switches::median(&s.switch_ns).unwrap_or(0), Switches::median(&s.open_ns).unwrap_or(0))
}
fn passes(p: &P, cores: u16, rung: usize, cs: u32, rate: f64) -> bool {
    let o = serve(&setup(p, cores, rung), &load(p, cs, rate, 20)).unwrap();
    o.served.finished_within as f64 >= 0.99 * o.served.sent as f64 && o.served.latencies[0].value_at_quantile(0.99) <= 300_000
}
fn sat(p: &P, cores: u16, rung: usize, cs: u32, mut lo: f64, mut hi: f64) -> f64 {
    for _ in 0..9 { let mid = (lo + hi) / 2.0; if passes(p, cores, rung, cs, mid) { lo = mid } else { hi = mid } }
    lo
}
const RANGES: [(f64, f64); 6] = [(13310., 13530.), (9940., 10160.), (6100., 6910.), (3320., 4040.), (4380., 4990.), (2350., 3260.)];
const LADDER: [f64; 4] = [258e3, 520e3, 680e3, 895e3];
fn rows(p: &P, fast: bool) -> (Vec<(u32, u32)>, Vec<f64>) {
    let css: Vec<_> = (0..6).map(|r| cs(p, r)).collect();
    let span = if fast { (0.9, 1.1) } else { (0.8, 1.2) };
    let ladder = (0..4).map(|r| sat(p, 16, r, css[r].0, LADDER[r] * span.0, LADDER[r] * span.1)).collect();
    (css, ladder)
}
fn cost(p: &P) -> f64 {
    let (css, ladder) = rows(p, true);
    let mut sum = 0.0;
    for (i, ((lo, hi), (c, _))) in RANGES.iter().zip(&css).enumerate() {
        let c = *c as f64;
        let w = hi - lo; let (lo, hi) = (lo + 0.1 * w, hi - 0.1 * w);
        let e = if c < lo { (lo - c) / lo } else if c > hi { (c - hi) / hi } else { 0.0 };
        sum += (e * 100.0).powi(2) * if i < 4 { 1.0 } else { 1.0 };
    }
    for (want, (_, open)) in [(0usize, 1013.0), (1, 426.0)].iter().map(|(r, w)| (*w, css[*r])) { sum += ((open as f64 - want) / want * 100.0).powi(2) * 0.3; }
    for (want, got) in LADDER.iter().zip(&ladder) { sum += ((got - want) / want * 100.0).powi(2); }
    sum
}
fn main() {
    let mut p: P = vec![2.5, 4.0, 1582.0, 600.0, 154.0, 479.0, 2.05, 0.0, 430.0, 1000.0, 86.0];
    let args: Vec<String> = std::env::args().collect();
    if args.len() > 2 { for (i, v) in args[2].split(',').enumerate() { p[i] = v.parse().unwrap(); } }
    let lo = [0.0, 0.0, 500.0, 600.0, 50.0, 0.0, 1.0, 0.0, 200.0, 1000.0, 86.0];
    let hi = [4.0, 12.0, 3000.0, 600.0, 350.0, 2500.0, 3.0, 400.0, 1200.0, 1000.0, 86.0];
    let step0 = [0.5, 1.0, 150.0, 60.0, 30.0, 200.0, 0.05, 50.0, 50.0, 0.0, 0.0];
    let n: usize = args[1].parse().unwrap();
    let mut best = cost(&p);
    let mut x = 12345u64;
    let mut rnd = || { x ^= x << 13; x ^= x >> 7; x ^= x << 17; (x >> 11) as f64 / (1u64 << 53) as f64 };
    let mut scale = 1.0;
    for i in 0..n {
        let mut q = p.clone();
        for k in 0..q.len() { if rnd() < 0.4 { q[k] = (q[k] + (rnd() - 0.5) * 2.0 * scale * step0[k]).clamp(lo[k], hi[k]); } }
        for k in [0, 1] { q[k] = (q[k] * 2.0).round() / 2.0; }
        let c = cost(&q);
        if c < best { best = c; p = q; scale = f64::min(scale * 1.3, 1.5); println!("{i}: {best:.2} {p:?}"); } else { scale = f64::max(scale * 0.97, 0.15); }
    }
    let (css, ladder) = rows(&p, false);
    for (n, v) in NAMES.iter().zip(&p) { println!("{n} = {v}"); }
    for (r, (c, o)) in RANGES.iter().zip(&css) { println!("cs {c} open {o} paper {r:?}"); }
    for (want, got) in LADDER.iter().zip(&ladder) { println!("ladder {got:.0} paper {want} {:+.2}%", (got / want - 1.0) * 100.0); }
    let on = sat(&p, 15, 5, css[5].0, 600e3, 1100e3);
    let w15 = sat(&p, 15, 3, css[3].0, 600e3, 1100e3);
    println!("onhost {on:.0} wave15 {w15:.0} {:+.2}% wave16 {:+.2}%", (w15 / on - 1.0) * 100.0, (ladder[3] / on - 1.0) * 100.0);
}
