//! Memory that a flood leaves in the heap goes back to the kernel. In a process of its own: other tests' memory would count.
#![cfg(target_env = "gnu")]

use wave_core::clock::Nanos;
use wave_process::heap::Spare;

const MIB: usize = 1 << 20;

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

#[test]
fn freed_memory_between_memory_in_use_leaves_the_process() {
    let mut spare = Spare::new();
    let before = resident();
    // Small pieces stay in the allocator, and a few in use keep it from shrinking the heap.
    let mut pieces: Vec<Option<Box<[u8; 64]>>> = Vec::new();
    pieces.resize_with(1 << 20, || Some(Box::new([1; 64])));
    let height = resident();
    assert!(height > before + 64 * MIB, "{before} bytes before, then {height}");
    spare.trim(Nanos::from_millis(1_000), true);
    let kept: Vec<_> = pieces.iter_mut().step_by(1 << 16).map(Option::take).collect();
    drop(pieces);
    (2..10).for_each(|second| spare.trim(Nanos::from_millis(1_000 * second), second == 2));
    let after = resident();
    assert!(after < before + 16 * MIB, "{before} bytes before, {height} at most, {after} after");
    drop(kept);
}
