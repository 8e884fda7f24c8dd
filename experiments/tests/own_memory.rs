//! Runs alone in its process: tests in parallel would allocate and free meanwhile.

use wave_app_memory::overhead::Before;

#[test]
fn memory_allocated_since_the_baseline_counts() {
    let before = Before::now();
    let more = std::hint::black_box(vec![1_u8; 64 << 20]);
    let grown = before.grown(&[]);
    drop(more);
    assert!(grown >= 64 << 20, "{grown}");
}
