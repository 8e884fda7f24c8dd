//! Memory orderings, in every interleaving with a few preemptions: a process uses shared connections while the agent asks it to stop.
//! Every access to the words is model-checked.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use wave_core::layout::Layout;
use wave_core::link::Home;
use wave_core_testing::loom::{check, port};
use wave_tcp::context::{PauseWords, window};

/// Calls of the process.
const CALLS: u64 = 2;

/// Positions that the agent reads once the process is outside are final: no other process reads the same bytes again,
/// and no written bytes are lost.
#[test]
fn positions_are_final_once_a_process_that_was_asked_to_stop_is_outside() {
    check(Some(3), || {
        let layout = Layout::new(window(1)).unwrap();
        // The second words of these lines.
        let inside = (Home::Nic as u8, layout.core_status, 1);
        let count = (Home::Host as u8, layout.preempt, 1);
        let port = port([inside, count].into_iter());
        let words = PauseWords::of(&layout);
        let position = Arc::new(AtomicU64::new(0));
        let (its_port, its_position) = (port.clone(), position.clone());
        let process = thread::spawn(move || {
            for call in 1..=CALLS {
                if words.enter(&its_port) > 0 {
                    // It would wait for the agent's event.
                    words.leave(&its_port);
                    return;
                }
                its_position.store(call, Relaxed);
                words.leave(&its_port);
            }
        });
        words.stop(&port, 1);
        while words.is_inside(&port) {
            thread::yield_now();
        }
        let read = position.load(Relaxed);
        process.join().unwrap();
        assert_eq!(position.load(Relaxed), read);
    });
}
