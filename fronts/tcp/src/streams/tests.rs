//! Shared connections without a stack: the door, and what another agent takes over.

use super::*;

/// Another agent's shared connections, after these. Its descriptors have other numbers.
fn replaced(streams: &Streams) -> Streams {
    let (kept, fds) = streams.hand_over();
    let kept = serde_json::from_value(serde_json::to_value(kept).unwrap()).unwrap();
    let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    let mut next = Streams::to_restore().unwrap();
    next.restore(kept, fds).unwrap();
    next
}

#[test]
fn counters_of_each_cause_survive_a_replacement() {
    let mut streams = Streams::new().unwrap();
    streams.counts.demoted[Cause::Splice as usize] = 3;
    streams.counts.torn = 2;
    let counts = replaced(&replaced(&streams)).counts;
    assert_eq!(counts.demoted[Cause::Splice as usize], 3);
    assert_eq!((counts.demoted.iter().sum::<u64>(), counts.torn), (3, 2));
}
