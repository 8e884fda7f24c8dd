//! A policy and a modelled address space, joined without a link.

#![allow(dead_code, reason = "each test uses a part")]

use wave_core::clock::Nanos;
use wave_core::policy::Choice;
use wave_memory::policies::Tiering;
use wave_memory::space::{Pattern, Space, settle};
use wave_memory::wire::{BATCH_PAGES, STRIP_BATCHES};

/// Time between two steps of the agent.
const STEP: Nanos = Nanos::from_millis(100);

/// `seconds` after the start.
pub const fn at(seconds: u64) -> Nanos {
    Nanos::from_millis(seconds * 1_000)
}

pub struct World {
    pub policy: Box<dyn Tiering>,
    pub space: Space,
    pub now: Nanos,
    pub made: Vec<(Nanos, Choice)>,
}

impl World {
    pub fn new(mut policy: Box<dyn Tiering>, space: Space) -> World {
        let now = Nanos(0);
        space.messages().for_each(|message| policy.on_message(now, &message));
        World { policy, space, now, made: Vec::new() }
    }

    pub fn run(&mut self, until: Nanos) {
        while self.now < until {
            let (now, made) = (self.now, &mut self.made);
            settle(&mut *self.policy, &mut self.space, now, |choice| made.push((now, *choice)));
            self.now = self.now + STEP;
        }
    }

    pub fn is_slow(&self, batch: u32) -> bool {
        let (strip, batch) = (batch / STRIP_BATCHES, batch % STRIP_BATCHES);
        self.policy.explain(strip, batch).unwrap().slow
    }
}

/// The expected share of a batch's pages that a pattern touches in 9.6 s from `from` on.
pub fn share(pattern: &Pattern, batch: u32, from: Nanos) -> f64 {
    let to = from + Nanos::from_millis(9_600);
    let pages = (0..BATCH_PAGES).map(|page| u64::from(batch * BATCH_PAGES + page));
    let touched = pages.map(|page| 1.0 - (-pattern.touches(page, from, to)).exp());
    touched.sum::<f64>() / f64::from(BATCH_PAGES)
}
