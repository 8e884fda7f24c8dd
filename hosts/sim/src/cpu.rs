//! A CPU that several tasks share: one runs at a time, until it yields the CPU.
//!
//! No task is interrupted. An agent and a generator that have to share a CPU behave like that: each
//! calls `sched_yield` after a bounded piece of work, and the kernel then runs the task that has waited
//! longest.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::machine::SharedCpu;
use crate::world::{Cause, TaskId, World};

/// A shared CPU. Its tasks enter it before their first piece of work, and leave it to sleep.
#[derive(Debug)]
pub struct Cpu {
    world: World,
    costs: SharedCpu,
    runs: Cell<Option<TaskId>>,
    waiting: RefCell<VecDeque<TaskId>>,
}

impl Cpu {
    /// Creates a CPU of `world`, which no task uses yet.
    pub fn new(world: &World, costs: &SharedCpu) -> Cpu {
        Cpu {
            world: world.clone(),
            costs: costs.clone(),
            runs: Cell::new(None),
            waiting: RefCell::default(),
        }
    }

    /// The costs of sharing the CPU.
    pub fn costs(&self) -> &SharedCpu {
        &self.costs
    }

    /// The calling task, which is `task`, asks for the CPU. Returns when the task has it.
    pub fn enter(&self, task: TaskId) {
        match self.runs.get() {
            Some(other) if self.world.is_alive(other) => {
                self.waiting.borrow_mut().push_back(task);
                self.world.wait(task, Cause::TURN, None);
            }
            _ => self.runs.set(Some(task)),
        }
    }

    /// The running task yields the CPU to the task that has waited longest, and waits for its own turn.
    pub fn give_way(&self, task: TaskId) {
        if self.pass_on() {
            self.waiting.borrow_mut().push_back(task);
            self.world.wait(task, Cause::TURN, None);
        } else {
            // Tasks that enter meanwhile wait.
            self.runs.set(Some(task));
            self.world.spend(self.costs.yield_alone.nanos());
        }
    }

    /// The running task goes to sleep.
    pub fn leave(&self) {
        self.pass_on();
    }

    /// Returns whether a task waited.
    fn pass_on(&self) -> bool {
        self.runs.set(None);
        // A task that was killed while it waited gets no turn.
        while let Some(next) = self.waiting.borrow_mut().pop_front() {
            if self.world.is_alive(next) {
                self.runs.set(Some(next));
                let at = self.world.now() + self.costs.yield_switch.nanos();
                self.world.wake(next, at, Cause::TURN);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use wave_core::clock::Nanos;
    use wave_links::costs::{Source, SourceKind};

    use super::*;
    use crate::machine::Figure;

    fn costs() -> SharedCpu {
        let figure = |value| Figure {
            value,
            source: Source { kind: SourceKind::Assumed, note: "a test".into() },
        };
        SharedCpu {
            yield_switch: figure(100.0),
            yield_alone: figure(10.0),
            generator_look: figure(0.0),
            ring_agent: figure(0.0),
            wake_agent: figure(0.0),
            control_look: figure(0.0),
        }
    }

    #[test]
    fn tasks_take_turns_and_only_one_runs_at_a_time() {
        let world = World::new();
        let cpu = Rc::new(Cpu::new(&world, &costs()));
        let log: Rc<RefCell<Vec<(u64, usize)>>> = Rc::default();
        let tasks: Rc<RefCell<Vec<TaskId>>> = Rc::default();
        for name in 0..2 {
            let (world_in, cpu, log, ids) =
                (world.clone(), Rc::clone(&cpu), Rc::clone(&log), Rc::clone(&tasks));
            let task = world.spawn(move || {
                let task = ids.borrow()[name];
                cpu.enter(task);
                for _ in 0..2 {
                    log.borrow_mut().push((world_in.now().0, name));
                    world_in.spend(Nanos(1_000));
                    cpu.give_way(task);
                }
                cpu.leave();
            });
            tasks.borrow_mut().push(task);
        }
        world.run_until(Nanos(1_000_000));
        assert_eq!(*log.borrow(), [(0, 0), (1_100, 1), (2_200, 0), (3_300, 1)]);
        world.end();
    }

    #[test]
    fn a_killed_task_does_not_block_the_others() {
        let world = World::new();
        let cpu = Rc::new(Cpu::new(&world, &costs()));
        let (ids, done) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
        for name in 0..2usize {
            let (world_in, cpu, ids_in, done) =
                (world.clone(), Rc::clone(&cpu), Rc::clone(&ids), Rc::clone(&done));
            let task = world.spawn(move || {
                let task = ids_in.borrow()[name];
                cpu.enter(task);
                for _ in 0..3 {
                    world_in.spend(Nanos(1_000));
                    cpu.give_way(task);
                }
                done.set(done.get() + 1);
                cpu.leave();
            });
            ids.borrow_mut().push(task);
        }
        // While the second runs, the first waits for its turn.
        world.run_until(Nanos(1_500));
        let first: TaskId = ids.borrow()[0];
        world.kill(first);
        world.run_until(Nanos(1_000_000));
        assert_eq!(done.get(), 1);
        world.end();
    }
}
