//! A window of requests in flight that adapts to the queue at the host.

/// Largest window: a front remembers the last 1,024 ids of a sender.
pub const WINDOW_MAX: u32 = 1000;
/// Factor by which a window shrinks.
const SHRINK: f64 = 0.875;

/// Number of requests that a sender may have in flight, by the rule of DECbit (Ramakrishnan and Jain, SIGCOMM 1988).
///
/// A reply *complains* if the host had more open requests than a target. When as many replies have arrived as the window has
/// requests, the window shrinks to 7/8 if at least half of them complain. Otherwise it grows by one request, if it was full
/// meanwhile. Replies to requests that were sent before such a decision do not count, because they show the queue that the
/// earlier window caused. In DECbit the router sets a bit; here the sender compares.
///
/// Whatever a front reports, the window has at least 1 and at most [`WINDOW_MAX`] requests.
#[derive(Clone, Debug)]
pub struct Window {
    target: u32,
    requests: f64,
    /// Outstanding replies to requests that were sent before the last decision.
    earlier: usize,
    heard: u32,
    complained: u32,
    was_full: bool,
}

impl Window {
    /// A window of one request. Replies complain if more than `target` requests are open at the host, other senders' included.
    pub fn new(target: u32) -> Window {
        Window { target, requests: 1.0, earlier: 0, heard: 0, complained: 0, was_full: false }
    }

    /// Number of requests that may be in flight.
    pub fn requests(&self) -> u32 {
        self.requests as u32
    }

    /// Whether one more request may be sent while `under_way` requests are in flight.
    pub fn has_room(&mut self, under_way: usize) -> bool {
        let has_room = under_way < self.requests() as usize;
        self.was_full |= !has_room;
        has_room
    }

    /// Processes the number of open requests from a reply ([`Reply::open`](crate::Reply::open)), while `under_way` requests
    /// are still in flight.
    pub fn replied(&mut self, open: u32, under_way: usize) {
        self.count(open > self.target, under_way);
    }

    /// Counts a refusal, or a try that had no answer in time, as a complaining reply.
    pub fn not_served(&mut self, under_way: usize) {
        self.count(true, under_way);
    }

    fn count(&mut self, complains: bool, under_way: usize) {
        if self.earlier > 0 {
            self.earlier -= 1;
            return;
        }
        self.heard += 1;
        self.complained += u32::from(complains);
        if self.heard < self.requests() {
            return;
        }
        if 2 * self.complained >= self.heard {
            self.requests = (self.requests * SHRINK).max(1.0);
        } else if self.was_full {
            self.requests = (self.requests + 1.0).min(WINDOW_MAX.into());
        }
        (self.earlier, self.heard, self.complained) = (under_way, 0, 0);
        self.was_full = false;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_feedback_keeps_the_window_between_one_and_the_maximum(
            target: u32,
            told in prop::collection::vec((any::<bool>(), any::<u32>(), 0usize..2_000), 0..3_000),
        ) {
            let mut window = Window::new(target);
            for (is_reply, open, under_way) in told {
                window.has_room(under_way);
                match is_reply {
                    true => window.replied(open, under_way),
                    false => window.not_served(under_way),
                }
                prop_assert!((1..=WINDOW_MAX).contains(&window.requests()));
                prop_assert!(window.has_room(0) && !window.has_room(WINDOW_MAX as usize));
            }
        }
    }

    #[test]
    fn short_queues_open_a_full_window_and_long_queues_close_it() {
        let mut window = Window::new(16);
        let mut tell = |open, times| {
            for _ in 0..times {
                window.has_room(WINDOW_MAX as usize);
                window.replied(open, 0);
            }
            window.requests()
        };
        // 1 + 2 + ... + 9 replies for a window of ten.
        assert_eq!(tell(16, 45), 10);
        assert_eq!(tell(u32::MAX, 10), 8);
        assert_eq!(tell(u32::MAX, 1_000), 1);
        assert_eq!(tell(0, 1_000_000), WINDOW_MAX);
    }

    #[test]
    fn window_that_is_not_full_does_not_grow() {
        let mut window = Window::new(16);
        for _ in 0..1_000 {
            assert!(window.has_room(0));
            window.replied(0, 0);
        }
        assert_eq!(window.requests(), 1);
    }

    /// Senders with endless requests share a host that serves one request per step.
    #[test]
    fn several_senders_keep_a_host_busy_with_a_queue_near_the_target() {
        const SENDERS: usize = 8;
        const TARGET: u32 = 16;
        const WARM: u64 = 5_000;
        const STEPS: u64 = 50_000;
        let mut windows = vec![Window::new(TARGET); SENDERS];
        let mut under_way = [0; SENDERS];
        let mut queue = VecDeque::new();
        let (mut idle, mut open, mut served) = (0, 0, [0; SENDERS]);
        for step in 0..WARM + STEPS {
            for (at, window) in windows.iter_mut().enumerate() {
                while window.has_room(under_way[at]) {
                    queue.push_back(at);
                    under_way[at] += 1;
                }
            }
            let counts = step >= WARM;
            open += if counts { queue.len() as u64 } else { 0 };
            let Some(at) = queue.pop_front() else {
                idle += u64::from(counts);
                continue;
            };
            under_way[at] -= 1;
            served[at] += u64::from(counts);
            windows[at].replied(queue.len() as u32, under_way[at]);
        }
        assert_eq!(idle, 0);
        let mean = open as f64 / STEPS as f64;
        assert!((8.0..=32.0).contains(&mean), "{mean}");
        let least = served.iter().min().unwrap() * SENDERS as u64;
        assert!(2 * least > STEPS, "a sender is starved: {served:?}");
    }
}
