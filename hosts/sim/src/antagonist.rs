//! A neighbour that uses memory bandwidth in bursts, and slows every core meanwhile.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_sched::wire::Kind;

use crate::app::{After, Application, Pace};
use crate::enclave::Enclave;

/// The bursts of a neighbour, and their effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Antagonist {
    /// The time from one burst to the next.
    pub period: Nanos,
    /// Length of a burst, at the start of each period.
    pub burst: Nanos,
    /// Slowdown of work during a burst: at least 1.
    pub slowdown: f64,
}

impl Antagonist {
    /// The pace at `now`, and the time of its next change.
    fn pace_at(&self, now: Nanos) -> (Pace, Nanos) {
        let into = now.0 % self.period.0;
        if into < self.burst.0 {
            (Pace(1.0 / self.slowdown), Nanos(now.0 - into + self.burst.0))
        } else {
            (Pace::NOMINAL, Nanos(now.0 - into + self.period.0))
        }
    }
}

/// An application beside an antagonist.
#[derive(Debug)]
pub struct Beside<A> {
    app: Rc<A>,
    antagonist: Antagonist,
}

impl<A: Application + 'static> Beside<A> {
    /// `app`, disturbed by `antagonist`.
    ///
    /// # Panics
    ///
    /// Unless the burst is shorter than its period, and `slowdown` is at least 1.
    pub fn new(app: Rc<A>, antagonist: Antagonist) -> Rc<Beside<A>> {
        let Antagonist { period, burst, slowdown } = antagonist;
        assert!(
            burst < period && slowdown >= 1.0,
            "a burst must be shorter than its period, and its slowdown at least 1"
        );
        Rc::new(Beside { app, antagonist })
    }
}

impl<A: Application> Application for Beside<A> {
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>) {
        Rc::clone(&self.app).start(enclave);
    }

    fn pace(&self, now: Nanos, core: u16) -> (Pace, Option<Nanos>) {
        let (Pace(own), changes) = self.app.pace(now, core);
        let (Pace(left), until) = self.antagonist.pace_at(now);
        (Pace(own * left), Some(changes.map_or(until, |changes| changes.min(until))))
    }

    fn ran(&self, now: Nanos, core: u16, id: u32, time: Nanos) {
        self.app.ran(now, core, id, time);
    }

    fn after(&self, enclave: &Enclave, id: u32) -> After {
        self.app.after(enclave, id)
    }

    fn left(&self, enclave: &Enclave, id: u32, kind: Kind) {
        self.app.left(enclave, id, kind);
    }
}

#[cfg(test)]
mod tests {
    use wave_links::costs::Costs;

    use super::*;
    use crate::closed::Closed;
    use crate::paper::{self, Rung};
    use crate::world::World;

    /// Threads that always run lose work in proportion to the antagonist's share of time.
    #[test]
    fn cores_slow_down_in_proportion_to_the_antagonists_share() {
        let runs = |antagonist: Option<Antagonist>| {
            let mut setup = paper::wave(2, Rung::Prestaged, "fifo");
            setup.costs = Costs::builtin("coherent").unwrap();
            let world = World::new();
            let closed = Closed::new(6, Nanos::from_micros(100));
            let app: Rc<dyn Application> = match antagonist {
                Some(antagonist) => Beside::new(Rc::clone(&closed), antagonist),
                None => Rc::clone(&closed) as _,
            };
            Enclave::new(&world, setup, app).unwrap().start_agent();
            world.run_until(Nanos::from_millis(40));
            world.end();
            closed.runs() as f64
        };
        let (period, burst) = (Nanos::from_micros(700), Nanos::from_micros(350));
        let slow = runs(Some(Antagonist { period, burst, slowdown: 3.0 }));
        // Half of the time at a third of the pace: two thirds of the work, apart from switches.
        let share = slow / runs(None);
        assert!((0.64..0.71).contains(&share), "{share}");
    }
}
