use std::rc::Rc;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_links::costs::*;
use wave_sim::{agent::AgentSetup, enclave::*, experiment::*, machine::*, requests::*};
fn main() {
    let f = |value: f64| Figure { value, source: Source { kind: SourceKind::Assumed, note: "x".into() } };
    let mut machine = Machine::builtin("user").unwrap();
    machine.shared_cpu = Some(SharedCpu { yield_switch: f(1336.0), yield_alone: f(486.0), generator_look: f(60.0), ring_agent: f(300.0), wake_agent: f(1000.0) });
    let mut config = Config::coherent(1);
    config.spin = Nanos(50_000);
    config.contexts = 2;
    config.prestage = 2;
    let setup = Setup { config, costs: Costs::builtin("coherent").unwrap(), machine, agent: AgentSetup { policy: "fifo".into(), ghz: 2.0, parks: true }, prefetch: true, seed: 1 };
    let load = Load { per_second: 30e3, classes: vec![Class { name: "GET".into(), weight: 1.0, service: Service::Fixed(Nanos(8_000)) }], threads: Threads::PerRequest, overhead: Nanos(0), warmup: Nanos(2_000_000), measure: Nanos(60_000_000), generators: 1 };
    let arrivals: Rc<[Arrival]> = (0..1860).map(|n| Arrival { at: Nanos(n * 33_333), class: 0 }).collect();
    let o = serve_given(&setup, &load, arrivals).unwrap();
    println!("{:?}\nlag {} {} lat {} resumed {}", o.counters, o.served.lags.value_at_quantile(0.5), o.served.lags.value_at_quantile(0.99), o.served.latencies[0].value_at_quantile(0.5), o.resumed);
}
