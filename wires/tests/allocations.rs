//! Wires allocate only when they are opened.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Head, addresses, bytes, tcp};
use wave_wires::{Adversity, Capture, CaptureOptions, Memory, Sent, Wire};

/// The system's allocator, with a count of each thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all the work, under the caller's contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn sending_and_receiving_frames_does_not_allocate() {
    let adversity = Adversity {
        loss: 0.1,
        duplicate: 0.2,
        reorder: 0.2,
        reorder_ns: 10_000,
        corrupt: 0.1,
        truncate: 0.1,
        delay_ns: 0..=5_000,
        segments_max: 100,
        frames_max: 4,
        ..Adversity::default()
    };
    let (ours, mut theirs) = Memory::pair(&adversity);
    let output = Box::new(std::io::sink());
    let clock = Box::new(|| 0);
    let mut ours = Capture::new(ours, output, &CaptureOptions::default(), clock).unwrap();
    let (from, to) = addresses(false);
    let payload = bytes(60_000);
    let head = Head::new(from, to, tcp(1), payload.len(), 2);
    let before = ALLOCATIONS.get();
    let mut received = 0;
    for round in 0..200 {
        assert_eq!(head.send(&mut ours, &payload, 1400), Sent::Taken);
        theirs.advance(round * 8_000);
        for _ in 0..10 {
            // Two frames at a time.
            let frames = [theirs.receive().unwrap(), theirs.receive().unwrap()];
            received += frames.iter().flatten().count();
        }
    }
    assert_eq!(ALLOCATIONS.get(), before);
    assert!(received > 2_000 && ours.frames() == 200, "{received} {}", ours.frames());
    assert!(ours.wire().fates().overflowed > 0);
}
