//! Stacks to run threads on. A fiber outlives its threads: when one has ended, the fiber waits for
//! the next, so a spawn touches neither the allocator nor the memory map.

use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use crossbeam_queue::ArrayQueue;
use wave_sched::mechanism::table::Leave;

use crate::table::Table;

pub(crate) type FiberYielder = Yielder<u32, Leave>;

/// A stack with the coroutine that is suspended on it. It moves twice per run, from the table to the core and back, so it is boxed:
/// moved by value, its 16-byte loads cover two 8-byte stores, which the processor cannot forward, and stall.
pub(crate) struct Fiber(Box<Coroutine<u32, Leave, (), DefaultStack>>);

// SAFETY: a fiber is resumed by one core at a time (the one that committed its thread). Its stack begins with a closure that is `Send`.
// What that puts on the stack moves as a whole, and so may be `Rc`s that share among themselves; that it shares nothing with the
// pthread's thread-locals is the rule on the crate's front page, which users keep and nothing checks (docs/adr/0098).
unsafe impl Send for Fiber {}

impl Fiber {
    fn new(table: &Arc<Table>, stack_bytes: usize) -> std::io::Result<Fiber> {
        let stack = DefaultStack::new(stack_bytes)?;
        let table = Arc::clone(table);
        let run = move |yielder: &FiberYielder, first: u32| {
            let mut id = first;
            loop {
                let slot = table.own(id);
                slot.set_yielder(yielder);
                slot.take_entry().call();
                id = yielder.suspend(Leave::Exit);
            }
        };
        Ok(Fiber(Box::new(Coroutine::with_stack(stack, run))))
    }

    /// Runs the thread `id` on this fiber until it gives the core back.
    #[inline]
    pub(crate) fn resume(&mut self, id: u32) -> Leave {
        self.0.resume(id).as_yield().expect("a fiber's loop does not end")
    }
}

/// All fibers of an enclave, made at start. Dropped with it, which unwinds each out of the loop
/// above and frees its stack. (Fibers whose threads have not ended are in the table, which they
/// keep alive: those are leaked.)
pub(crate) struct Fibers(ArrayQueue<Fiber>);

impl Fibers {
    pub(crate) fn new(
        table: &Arc<Table>,
        count: usize,
        stack_bytes: usize,
    ) -> std::io::Result<Fibers> {
        let free = ArrayQueue::new(count);
        for _ in 0..count {
            let _ = free.push(Fiber::new(table, stack_bytes)?);
        }
        Ok(Fibers(free))
    }

    /// Takes a free fiber. There are as many fibers as ids, so there is one for each thread that starts.
    pub(crate) fn take(&self) -> Option<Fiber> {
        self.0.pop()
    }

    pub(crate) fn give_back(&self, fiber: Fiber) {
        if let Err(fiber) = self.0.push(fiber) {
            std::mem::forget(fiber);
        }
    }
}
