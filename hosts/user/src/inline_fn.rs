//! The closure that a new thread runs, stored in the thread's slot without a box.

use std::mem::{ManuallyDrop, MaybeUninit, align_of, size_of};

const WORDS: usize = 14;

type Storage = MaybeUninit<[usize; WORDS]>;

/// A `FnOnce` of at most 112 bytes in place; a larger one is boxed (which allocates).
pub(crate) struct InlineFn {
    storage: Storage,
    /// Moves the closure out of the storage and calls it, or only drops it.
    consume: unsafe fn(*mut Storage, bool),
}

// SAFETY: only closures that are `Send` are ever stored.
unsafe impl Send for InlineFn {}

impl InlineFn {
    pub(crate) fn new<F: FnOnce() + Send + 'static>(function: F) -> InlineFn {
        if size_of::<F>() <= size_of::<Storage>() && align_of::<F>() <= align_of::<Storage>() {
            InlineFn::in_place(function)
        } else {
            InlineFn::in_place(Box::new(function))
        }
    }

    fn in_place<F: FnOnce() + Send + 'static>(function: F) -> InlineFn {
        const { assert!(size_of::<Box<u8>>() <= size_of::<Storage>()) };
        unsafe fn consume<F: FnOnce()>(storage: *mut Storage, call: bool) {
            // SAFETY: `in_place::<F>` stored an `F` here, and `consume` is called once per value.
            let function = unsafe { storage.cast::<F>().read() };
            if call {
                function();
            }
        }
        let mut storage = Storage::uninit();
        // SAFETY: `new` has checked size and alignment of every `F` that is not a box, and a box
        // fits by the assertion above.
        unsafe { storage.as_mut_ptr().cast::<F>().write(function) };
        InlineFn { storage, consume: consume::<F> }
    }

    pub(crate) fn call(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` will not be dropped, so this is the one call of `consume`.
        unsafe { (this.consume)(&mut this.storage, true) }
    }
}

impl Drop for InlineFn {
    fn drop(&mut self) {
        // SAFETY: `call` forgets `self`, so this is the one call of `consume`.
        unsafe { (self.consume)(&mut self.storage, false) }
    }
}

#[cfg(test)]
mod tests {
    use super::InlineFn;
    use std::sync::Arc;

    #[test]
    fn closure_of_any_size_is_run_or_dropped_exactly_once() {
        let witness = Arc::new(());
        let (small, dropped) = (witness.clone(), witness.clone());
        let (big, padding) = (witness.clone(), [7u8; 4096]);
        InlineFn::new(move || drop(small)).call();
        InlineFn::new(move || {
            assert_eq!(padding[4095], 7);
            drop(big)
        })
        .call();
        drop(InlineFn::new(move || drop(dropped)));
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
