//! The loop around a front that has its agent for itself: polls, spins, parks, ends.

use wave_core::agent::Step;

use super::front::RpcFront;
use super::notes::NotesTo;
use crate::run::Seat;

/// Serves until the front was told to end and has done so.
pub fn serve(front: &mut RpcFront) {
    serve_with(front, None);
}

/// [`serve`], and a scheduler in another agent hears of each request that is handed to a thread.
pub fn serve_with(front: &mut RpcFront, mut notes: Option<&mut NotesTo>) {
    if let Some(notes) = &notes {
        front.watch(notes.listener());
    }
    let mut idle_since = None;
    while !front.has_ended() {
        let step = turn(front, &mut notes);
        front.look_after_memory();
        let progressed = front.take_progress();
        if progressed {
            idle_since = None;
        }
        if step == Step::Progress {
            continue;
        }
        let now = front.polled();
        match front.seat() {
            Seat::Own if now.since(*idle_since.get_or_insert(now)) < front.spin() => {
                std::hint::spin_loop();
                continue;
            }
            // Whoever shares the CPU may have an answer by then.
            Seat::Shared if progressed => std::thread::yield_now(),
            _ => {}
        }
        front.prepare_park();
        // The word that says "asleep" has arrived; what came before it must be seen first.
        if let Step::Idle(until) = turn(front, &mut notes) {
            let due = notes.as_ref().and_then(|notes| notes.due(front.polled()));
            front.park(until.into_iter().chain(due).min());
            if let Some(notes) = &mut notes {
                notes.awake();
            }
        }
        front.unpark();
    }
}

/// The front's turn, and its notes go where they are wanted.
fn turn(front: &mut RpcFront, notes: &mut Option<&mut NotesTo>) -> Step {
    let step = front.poll();
    match notes {
        Some(notes) => notes.pass(front),
        None => front.take_notes(drop),
    }
    step
}
