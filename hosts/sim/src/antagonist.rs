//! A neighbour that wants memory bandwidth now and then, and slows every core while it does.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_sched::wire::Kind;

use crate::app::{After, Application, Pace};
use crate::enclave::Enclave;

/// When it is active, and what that does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Antagonist {
    /// It is active once in each of these.
    pub period: Nanos,
    /// For so long, at the period's start.
    pub burst: Nanos,
    /// Slowdown of work during a burst: at least 1.
    pub slowdown: f64,
}

impl Antagonist {
    /// The pace at that time, and when it changes.
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
    /// Unless the burst is shorter than its period, and slows.
    pub fn new(app: Rc<A>, antagonist: Antagonist) -> Rc<Beside<A>> {
        let Antagonist { period, burst, slowdown } = antagonist;
        assert!(burst < period && slowdown >= 1.0, "a burst within its period, that slows");
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

    /// Threads that always run get as much less done as the antagonist's share of time says.
    #[test]
    fn cores_slow_down_by_the_antagonists_share() {
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
        // Half of the time at a third of the pace: two thirds of the work, switches aside.
        let share = slow / runs(None);
        assert!((0.64..0.71).contains(&share), "{share}");
    }
}
