//! The core's traits over the engine: a context's port, its two views and its copy engine.

use std::rc::Rc;
use std::sync::Arc;

use wave_core::link::{Dma, Home, Mapping, Port, Side, Span, Ticket, Window};

use super::charges::Charges;
use super::context::Context;
use super::setup::ModelError;
use super::time::Timebase;
use crate::costs::Costs;
use crate::memory::Memory;

/// One context's view of a region over a modelled link.
#[derive(Debug)]
pub struct ModelWindow<T> {
    context: Rc<Context<T>>,
    home: Home,
}

/// One context's copy engine on a modelled link. A ticket is the time of arrival.
#[derive(Debug)]
pub struct ModelDma<T> {
    context: Rc<Context<T>>,
}

/// One context's access to a modelled link.
#[derive(Debug)]
pub struct ModelPort<T> {
    nic: ModelWindow<T>,
    host: ModelWindow<T>,
    dma: ModelDma<T>,
}

// SAFETY: all three `Rc`s of a context are in its port's fields, none is ever handed out by value
// or cloned afterwards, so they move between threads together; the context is `Send` if `T` is.
unsafe impl<T: Send> Send for ModelPort<T> {}

const _: () = {
    const fn is_send<T: Send>() {}
    /// Compiles only if a context of any such `T` is `Send`.
    const fn context_is_send<T: Send>() {
        is_send::<Context<T>>();
    }
    context_is_send::<super::time::RealTime>();
};

impl<T: Timebase> ModelPort<T> {
    /// Creates a context of `side` over `memory`, whose extra region has [`super::extra_lines`].
    ///
    /// `page_types` lists how this side maps lines; other lines are write-back in near memory and
    /// uncached in far memory. An agent reaches host memory through its copy engine, whatever
    /// the page type. `seed` decides what hardware leaves open.
    pub fn new(
        memory: Arc<Memory>,
        side: Side,
        costs: &Costs,
        page_types: &[(Span, Mapping)],
        time: T,
        seed: u64,
    ) -> Result<ModelPort<T>, ModelError> {
        let context = Rc::new(Context::new(memory, side, costs, page_types, time, seed)?);
        Ok(ModelPort {
            nic: ModelWindow { context: context.clone(), home: Home::Nic },
            host: ModelWindow { context: context.clone(), home: Home::Host },
            dma: ModelDma { context },
        })
    }

    /// What this context was charged so far.
    pub fn charges(&self) -> Charges {
        self.dma.context.charges()
    }

    /// What this context was charged since the last call.
    pub fn take_charges(&self) -> Charges {
        self.dma.context.take_charges()
    }
}

impl<T> ModelPort<T> {
    /// Takes the port apart. The caller keeps the parts in one place, as the port did.
    pub(crate) fn into_parts(self) -> (ModelWindow<T>, ModelWindow<T>, ModelDma<T>) {
        (self.nic, self.host, self.dma)
    }
}

impl<T: Timebase> ModelDma<T> {
    pub(crate) fn charges(&self) -> Charges {
        self.context.charges()
    }

    pub(crate) fn take_charges(&self) -> Charges {
        self.context.take_charges()
    }
}

impl<T: Timebase> Port for ModelPort<T> {
    type Window = ModelWindow<T>;
    type Dma = ModelDma<T>;

    fn window(&self, home: Home) -> &ModelWindow<T> {
        match home {
            Home::Nic => &self.nic,
            Home::Host => &self.host,
        }
    }

    fn dma(&self) -> &ModelDma<T> {
        &self.dma
    }
}

impl<T: Timebase> Window for ModelWindow<T> {
    fn load(&self, line: u32, word: usize) -> u64 {
        let mut words = [0];
        self.context.load(self.home, line, word, &mut words);
        words[0]
    }

    fn store(&self, line: u32, word: usize, value: u64) {
        let mut words = [0; 8];
        words[word] = value;
        self.context.store(self.home, line, words, 1 << word);
    }

    fn read_line(&self, line: u32, words: &mut [u64]) {
        self.context.load(self.home, line, 0, words);
    }

    fn write_line(&self, line: u32, words: &[u64], last: u64) {
        let mut all = [0; 8];
        all[..7][..words.len()].copy_from_slice(words);
        all[7] = last;
        let given = (1u8 << words.len()) - 1;
        self.context.store_line(self.home, line, all, given | 0x80);
    }

    fn publish(&self) {
        self.context.publish(self.home);
    }

    fn fence(&self) {
        self.context.fence(self.home);
    }

    fn flush(&self, line: u32) {
        self.context.flush(self.home, line);
    }

    fn prefetch(&self, line: u32) {
        self.context.prefetch(self.home, line);
    }
}

impl<T: Timebase> Dma for ModelDma<T> {
    fn copy(&self, from: Span, to: Span) -> Ticket {
        Ticket(self.context.copy(from, to))
    }

    fn is_done(&self, ticket: Ticket) -> bool {
        self.context.has_arrived(ticket.0)
    }
}
