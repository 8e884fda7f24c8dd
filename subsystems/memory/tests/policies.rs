//! The policies under patterns of access, over a modelled address space.

mod common;

use common::{World, at, share};
use wave_core::clock::Nanos;
use wave_memory::beta::Sampling;
use wave_memory::policies::sol::{Settings, Sol};
use wave_memory::policies::threshold::Threshold;
use wave_memory::policies::{Classifier, Tiered};
use wave_memory::space::{Pattern, Space};

const STRIPS: u32 = 8;
const BATCHES: u32 = STRIPS * 64;
const PAGES: u64 = BATCHES as u64 * 64;
/// A fifth of the pages, in whole batches.
const HOT_PAGES: u64 = (BATCHES / 5 * 64) as u64;
/// Three epochs, and the rest of a strip's first.
const SETTLED: Nanos = at(160);

fn world<C: Classifier + 'static>(classifier: C, pattern: Pattern, seed: u64) -> World {
    let policy = Tiered::new(classifier, STRIPS, seed);
    World::new(Box::new(policy), Space::new(STRIPS, pattern, seed))
}

fn hot_set(first: u64) -> Pattern {
    Pattern::HotSet { first, pages: HOT_PAGES, per_second: 0.5 }
}

/// A fifth is hot, and of every batch three pages are touched all the time.
fn hot_set_and_heads() -> Pattern {
    Pattern::Sum(vec![hot_set(0), Pattern::Heads { pages: 3, per_second: 2.0 }])
}

/// Misplaced batches, where the pattern is clear: hot ones in the slow tier, and cold ones in the fast tier. And the number of
/// clear batches.
fn misplaced(world: &World, pattern: &Pattern) -> (usize, usize, usize) {
    let (mut hot, mut cold, mut clear) = (0, 0, 0);
    for batch in 0..BATCHES {
        let (share, is_slow) = (share(pattern, batch, world.now), world.is_slow(batch));
        hot += usize::from(share > 0.5 && is_slow);
        cold += usize::from(share < 0.2 && !is_slow);
        clear += usize::from(!(0.2..=0.5).contains(&share));
    }
    (hot, cold, clear)
}

#[test]
fn sol_pages_out_cold_batches_only() {
    let zipf = Pattern::Zipf { exponent: 0.99, first_per_second: 200.0 };
    let busy_zipf = Pattern::Sum(vec![zipf.clone(), Pattern::Heads { pages: 4, per_second: 5.0 }]);
    let patterns = [
        ("hot set", hot_set(0), 512),
        ("hot set, busy heads", hot_set_and_heads(), 512),
        ("Zipf", zipf, 400),
        ("Zipf, busy heads", busy_zipf, 300),
        ("slow sweep", Pattern::Sweep { pages: PAGES, per_second: PAGES as f64 / 1e4 }, 500),
    ];
    for (name, pattern, clear_least) in patterns {
        for sampling in [Sampling::Fast, Sampling::Exact] {
            for seed in 0..3 {
                let sol = Sol::new(Settings { sampling, ..Settings::default() });
                let mut world = world(sol, pattern.clone(), seed);
                world.run(SETTLED);
                let (hot, cold, clear) = misplaced(&world, &pattern);
                let resident = world.space.resident_pages(world.now) as f64 / PAGES as f64;
                let counts = world.space.counts();
                println!("{name}, {sampling:?}, seed {seed}: {resident:.3} resident, {counts:?}");
                assert!(clear >= clear_least, "{name}: the pattern is clear for {clear} batches");
                assert_eq!((hot, cold), (0, 0), "{name}, {sampling:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn sol_leaves_uniform_access_alone() {
    let uniform = |per_second| Pattern::Uniform { per_second };
    let quick_sweep = Pattern::Sweep { pages: PAGES, per_second: PAGES as f64 / 5.0 };
    for pattern in [uniform(0.5), uniform(0.1), quick_sweep] {
        for seed in 0..3 {
            let mut world = world(Sol::default(), pattern.clone(), seed);
            world.run(SETTLED);
            assert_eq!(world.space.counts().paged_out, 0, "{pattern:?}");
        }
    }
}

/// Such as a garbage collector that marks everything: two seconds of each hundred.
fn hot_set_and_sweeps() -> Pattern {
    let per_second = PAGES as f64 / 2.0;
    let sweep = Pattern::Sweep { pages: PAGES * 50, per_second };
    Pattern::Sum(vec![hot_set(0), sweep])
}

#[test]
fn a_sweep_refaults_each_page_once_and_pages_leave_soon_after() {
    let cold = PAGES - HOT_PAGES;
    for seed in 0..3 {
        let mut world = world(Sol::default(), hot_set_and_sweeps(), seed);
        world.run(at(199));
        let before = world.space.resident_pages(world.now);
        assert!(before < HOT_PAGES + cold / 10, "{before}");
        world.run(at(203));
        assert_eq!(world.space.resident_pages(world.now), PAGES, "it was swept");
        let refaults = world.space.counts().refaults;
        // Before the end of the epoch, which comes at 230.4 s.
        world.run(at(225));
        let after = world.space.resident_pages(world.now);
        println!("seed {seed}: {before} pages before a sweep, {after} of {PAGES} 22 s after it");
        assert!(after < HOT_PAGES + cold / 4, "{after}");
        assert_eq!(world.space.counts().refaults, refaults, "none of the pages was in use");
    }
}

#[test]
fn sol_follows_a_change() {
    let (before, after) = (hot_set(0), hot_set(PAGES / 2));
    for seed in 0..3 {
        let patterns = [Box::new(before.clone()), Box::new(after.clone())];
        let change = Pattern::Change { at: SETTLED, patterns };
        let mut world = world(Sol::default(), change, seed);
        world.run(SETTLED);
        assert_eq!(misplaced(&world, &before), (0, 0, BATCHES as usize));
        let refaults = world.space.counts().refaults;
        world.run(SETTLED + SETTLED);
        assert_eq!(misplaced(&world, &after), (0, 0, BATCHES as usize));
        let refaults = world.space.counts().refaults - refaults;
        println!("seed {seed}: {refaults} refaults for {HOT_PAGES} pages");
        assert!(refaults <= HOT_PAGES + HOT_PAGES / 10, "hot pages are paged out");
    }
}

/// SOL also finds hot batches for which a fixed period of 300 ms is too short.
#[test]
fn sol_scans_less_than_a_fixed_period() {
    let pattern = hot_set_and_heads();
    let mut sol = world(Sol::default(), pattern.clone(), 1);
    let often =
        Threshold { period: Nanos::from_millis(300), epoch_periods: 128, ..Threshold::default() };
    let mut often = world(often, pattern.clone(), 1);
    for world in [&mut sol, &mut often] {
        world.run(SETTLED);
    }
    let scans = [&sol, &often].map(|world| world.space.counts().scans);
    println!("scans: SOL {}, every 300 ms {}", scans[0], scans[1]);
    assert!(scans[0] * 10 < scans[1], "{scans:?}");
    assert_eq!(misplaced(&sol, &pattern), (0, 0, BATCHES as usize));
    let hot = misplaced(&often, &pattern).0;
    println!("every 300 ms, hot batches in the slow tier: {hot} of {}", BATCHES / 5);
    assert!(hot > 0, "everything looks cold at 300 ms");
}

#[test]
fn threshold_finds_a_hot_set_even_if_every_batch_has_busy_pages() {
    for pattern in [hot_set(0), hot_set_and_heads()] {
        let mut share = world(Threshold::default(), pattern.clone(), 1);
        share.run(SETTLED);
        assert_eq!(misplaced(&share, &pattern), (0, 0, BATCHES as usize));
        println!("{}: {:?}", share.policy.name(), share.space.counts());
    }
}

/// A strip's decisions do not depend on the other strips of the same agent.
#[test]
fn strips_can_be_divided_among_agents() {
    let whole = {
        let mut world = world(Sol::default(), hot_set_and_heads(), 5);
        world.run(at(60));
        world
    };
    // The same accesses: the policy's recorded inputs are replayed in two parts.
    for half in [0..STRIPS / 2, STRIPS / 2..STRIPS] {
        let mine = |strip: u32| half.contains(&strip);
        let mut policy = Tiered::new(Sol::default(), STRIPS, 5);
        let mut space = Space::new(STRIPS, hot_set_and_heads(), 5);
        let mut made = Vec::new();
        use wave_core::policy::Policy;
        use wave_memory::policies::Tiering;
        space.messages().filter(|message| mine(message.subject.id)).for_each(|message| {
            policy.on_message(Nanos(0), &message);
        });
        let mut whole_made = whole.made.iter().peekable();
        for step in 0..600 {
            let now = Nanos::from_millis(step * 100);
            while let Some(choice) = policy.next(now) {
                made.push((now, choice));
            }
            while let Some((_, choice)) = whole_made.next_if(|(time, _)| *time == now) {
                let code = space.apply(now, choice);
                if mine(choice.subject.id) {
                    wave_memory::space::answer(&mut policy, now, choice, code);
                }
            }
            let readings = space.take_readings();
            policy.on_bulk(now, &readings).unwrap();
        }
        let expected: Vec<_> =
            whole.made.iter().filter(|(_, choice)| mine(choice.subject.id)).copied().collect();
        assert!(expected.len() > 100);
        assert_eq!(made, expected);
    }
}
