use wave_sim::fuzz::*;
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|v| v.parse().unwrap()).collect();
    let mut all = std::collections::BTreeMap::new();
    let mut bad = 0; let mut messages = 0; let mut min = u64::MAX;
    let t = std::time::Instant::now();
    for seed in a[0]..a[0] + a[1] {
        let t1 = std::time::Instant::now();
        let r = run(&Plan::new(seed, &[]));
        if t1.elapsed().as_millis() > 400 { println!("slow {seed} {:?} until {} messages {}", t1.elapsed(), r.until.0, r.messages); }
        messages += r.messages; min = min.min(r.messages);
        for (k, v) in r.faults { *all.entry(k.name()).or_insert(0) += v; }
        if let Some(v) = r.violation { bad += 1; println!("seed {seed}: {v:?}"); if a.len() > 2 { println!("{:#?}", Plan::new(seed, &[])); } }
    }
    println!("bad {bad} messages {messages} min {min} {:?} {:?}", all, t.elapsed());
}
