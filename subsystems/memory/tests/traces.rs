//! Each policy's decisions as text: a change of behaviour shows as a change of `traces/NAME.txt`.
//!
//! `WAVE_BLESS=1 cargo test -p wave-memory --test traces` rewrites the files.

mod common;

use std::fmt::Write;

use common::{World, at};
use wave_core::layout::Config;
use wave_memory::policies::{NAMES, by_name};
use wave_memory::space::{Pattern, Space};
use wave_memory::wire::Action;

/// One strip: first its first half is hot, then the second; two pages of each batch are always hot.
fn history(name: &str) -> String {
    let half = 32 * 64;
    let hot = |first| Pattern::HotSet { first, pages: half, per_second: 0.3 };
    let patterns = [Box::new(hot(0)), Box::new(hot(half))];
    let change = Pattern::Change { at: at(120), patterns };
    let pattern = Pattern::Sum(vec![change, Pattern::Heads { pages: 2, per_second: 1.0 }]);
    let config = Config { subjects: 1, ..Config::coherent(1) };
    let mut world = World::new(by_name(name, &config).unwrap(), Space::new(1, pattern, 1));
    world.run(at(250));
    let mut text = String::new();
    for (time, choice) in &world.made {
        let action = Action::from_number(choice.kind).unwrap();
        let seconds = time.0 as f64 / 1e9;
        writeln!(text, "{seconds:6.1} s  {action:<9?} {:016x}", choice.argument).unwrap();
    }
    writeln!(text, "{} pages, {:?}", world.space.resident_pages(world.now), world.space.counts())
        .unwrap();
    text
}

#[test]
fn decisions_match_the_committed_traces() {
    let bless = std::env::var_os("WAVE_BLESS").is_some();
    let mut different = Vec::new();
    for name in NAMES {
        let text = history(name);
        assert_eq!(text, history(name), "{name}: the same seed must give the same decisions");
        let path = format!("{}/tests/traces/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        if bless {
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if text != expected {
            let differs = text.lines().zip(expected.lines()).position(|(new, old)| new != old);
            let line = differs.map_or_else(|| expected.lines().count() + 1, |line| line + 1);
            let now = text.lines().nth(line - 1).unwrap_or("nothing");
            different
                .push(format!("{name}.txt differs from line {line} on; that line is now: {now}"));
        }
    }
    assert!(different.is_empty(), "decisions changed: {different:#?}");
}
