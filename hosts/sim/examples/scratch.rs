use std::rc::Rc;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::link::*;
use wave_links::costs::Costs;
use wave_sim::{agent::AgentSetup, closed::Closed, enclave::*, machine::Machine, requests::*, world::World};

fn setup(cores: u16, rung: usize, link: &str) -> Setup {
    let mut config = Config::pcie(cores);
    config.contexts = 5;
    config.messages.entries = 256;
    config.spin = Nanos(0);
    config.prestage = if rung >= 3 { 1 } else { 0 };
    if rung < 2 { config.messages.host = Mapping::Uncached; config.decisions.host = Mapping::Uncached; }
    if rung < 1 { config.messages.agent = Mapping::Uncached; config.decisions.agent = Mapping::Uncached; }
    Setup {
        config,
        costs: Costs::builtin(link).unwrap(),
        machine: Machine::builtin("ghost").unwrap(),
        agent: AgentSetup { policy: "fifo".into(), ghz: 3.0, parks: false },
        prefetch: rung >= 3,
        seed: 1,
    }
}
fn main() {
    for rung in 0..4 {
        let world = World::new();
        let app = Closed::new(3, Nanos(10_000));
        let enclave = Enclave::new(&world, setup(1, rung, "mount-evans"), app.clone()).unwrap();
        enclave.start_agent();
        world.run_until(Nanos::from_millis(1));
        enclave.keep_times();
        world.run_until(Nanos::from_millis(11));
        let mut c = enclave.counters();
        c.switch_ns.sort();
        let n = c.switch_ns.len();
        println!("rung {rung}: switches {n} cs p10 {} median {} p90 {} at_once {}/{} runs {}", c.switch_ns[n/10], c.switch_ns[n/2], c.switch_ns[n*9/10], c.at_once, c.switches, app.runs());
        world.end();
        let cs = c.switch_ns[n/2] as u64;
        for load in [250e3, 500e3, 660e3, 880e3, 2e6] {
            let t = std::time::Instant::now();
            let s = setup(16, rung, "mount-evans");
            let m = &s.machine;
            let overhead = Nanos(m.request_overhead.value as u64 + ((m.crossings_per_request.value - 1.0) * cs as f64) as u64);
            let world = World::new();
            let app = Requests::new(Load { per_second: load, classes: vec![Class { name: "GET".into(), weight: 1.0, service: Service::Fixed(Nanos(10_000)) }], threads: Threads::Pool(200), overhead, warmup: Nanos::from_millis(10), measure: Nanos::from_millis(40), generators: 4 }, 1);
            let enclave = Enclave::new(&world, s, app.clone()).unwrap();
            enclave.start_agent();
            world.run_until(Nanos::from_millis(51));
            let served = app.served();
            let c = enclave.counters();
            println!("  load {load}: {:.1}k/s p50 {} p99 {} at_once {:.2} agent busy {:.2} kicks {} lag {} backlog {} | {:?} cpu, resumed {}", served.finished_within as f64 / 0.04 / 1e3, served.latencies[0].value_at_quantile(0.5), served.latencies[0].value_at_quantile(0.99), c.at_once as f64 / c.switches as f64, c.agent_busy.0 as f64 / world.now().0 as f64, c.kicks, served.lag_max.0, app.backlog(), t.elapsed(), world.resumed());
            if c.lost_agents > 0 { println!("    LOST {} barks {} errors {:?}", c.lost_agents, c.barks, c.agent_errors); }
            world.end();
        }
    }
}
