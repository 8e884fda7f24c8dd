//! Handles: pointers to what is never freed, so that one whose server has gone is known for what it is.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::answer::{Failure, WAVE_RPC_BAD_HANDLE, WAVE_RPC_BUSY, WAVE_RPC_STOPPED};

/// What a handle can be of.
pub trait Kind {
    /// The first word of its handles, and of no other kind's.
    const WORD: u64;
    /// Name of the type in messages.
    const NAME: &'static str;
}

/// What a handle points to: a hundred bytes that stay, around what goes when the server is stopped.
#[repr(C)]
pub struct Shell<T> {
    word: AtomicU64,
    busy: AtomicBool,
    inner: UnsafeCell<Option<T>>,
}

// SAFETY: `inner` is reached through `enter` alone, by one thread at a time: `busy` is a lock.
unsafe impl<T: Send> Sync for Shell<T> {}

/// Where all handles are, so that they count as reachable.
static ALL: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl<T: Kind + Send + 'static> Shell<T> {
    pub(crate) fn new(inner: T) -> *mut Shell<T> {
        let shell = Shell {
            word: AtomicU64::new(T::WORD),
            busy: AtomicBool::new(false),
            inner: UnsafeCell::new(Some(inner)),
        };
        let shell = Box::into_raw(Box::new(shell));
        ALL.lock().unwrap_or_else(PoisonError::into_inner).push(shell.expose_provenance());
        shell
    }

    /// What the handle is of, for one thread at a time.
    ///
    /// # Safety
    /// It is null, or this library gave it out, be it for another kind.
    pub(crate) unsafe fn enter(handle: *const Shell<T>) -> Result<Entered<T>, Failure> {
        let bad = |what: &str| {
            Failure::new(WAVE_RPC_BAD_HANDLE, format!("the handle is {what}, and no {}", T::NAME))
        };
        if handle.is_null() {
            return Err(bad("null"));
        }
        if !handle.is_aligned() {
            return Err(bad("no pointer of this library's"));
        }
        // SAFETY: each handle of this library begins with such a word, and is never freed (the caller's promise).
        let word = unsafe { &*handle.cast::<AtomicU64>() };
        if word.load(Ordering::Relaxed) != T::WORD {
            return Err(bad("of another kind"));
        }
        // SAFETY: as above; by its word it is of this kind.
        let shell: &'static Shell<T> = unsafe { &*handle };
        if shell.busy.swap(true, Ordering::Acquire) {
            let text = format!("another thread uses this {} at this moment", T::NAME);
            return Err(Failure::new(WAVE_RPC_BUSY, text));
        }
        let entered = Entered { shell };
        // SAFETY: `busy` was taken just now, by this thread.
        if unsafe { &*shell.inner.get() }.is_none() {
            return Err(Failure::new(WAVE_RPC_STOPPED, "the server was stopped"));
        }
        Ok(entered)
    }
}

/// A handle that this thread uses.
pub(crate) struct Entered<T: 'static> {
    shell: &'static Shell<T>,
}

impl<T> Entered<T> {
    /// Takes what is in it: the handle is over.
    pub(crate) fn take(self) -> Option<T> {
        // SAFETY: `busy` is this thread's until `self` is dropped.
        unsafe { &mut *self.shell.inner.get() }.take()
    }
}

impl<T> Deref for Entered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `busy` is this thread's while `self` is there.
        unsafe { &*self.shell.inner.get() }.as_ref().expect("it was there when it was entered")
    }
}

impl<T> DerefMut for Entered<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { &mut *self.shell.inner.get() }.as_mut().expect("it was there when it was entered")
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        self.shell.busy.store(false, Ordering::Release);
    }
}
