//! Handles: pointers to memory that is never freed, so that a handle of a stopped server is recognized.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::answer::{Failure, WAVE_RPC_BAD_HANDLE, WAVE_RPC_BUSY, WAVE_RPC_STOPPED};

/// A kind of handle.
pub trait Kind {
    /// The first word behind each handle of this kind, and of no other kind.
    const WORD: u64;
    /// Name of the type in messages.
    const NAME: &'static str;
}

/// The target of a handle: about a hundred bytes that are never freed, around contents that are freed when the server is stopped.
#[repr(C)]
pub struct Shell<T> {
    word: AtomicU64,
    busy: AtomicBool,
    inner: UnsafeCell<Option<T>>,
}

// SAFETY: `inner` is reached only through `enter`, by one thread at a time: `busy` is a lock. `Entered` is shared between threads only
// if `T` is `Sync` (its marker).
unsafe impl<T: Send> Sync for Shell<T> {}

/// The addresses of all handles, so that leak checkers see them as reachable.
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

    /// Locks the contents of a handle for this thread.
    ///
    /// # Safety
    /// `handle` is null, or was created by this library, of this kind or another.
    pub(crate) unsafe fn enter(handle: *const Shell<T>) -> Result<Entered<T>, Failure> {
        let bad = |what: &str| {
            Failure::new(WAVE_RPC_BAD_HANDLE, format!("the handle is {what}, not a {}", T::NAME))
        };
        if handle.is_null() {
            return Err(bad("null"));
        }
        if !handle.is_aligned() {
            return Err(bad("a misaligned pointer"));
        }
        // SAFETY: each handle of this library points to a shell, which begins with such a word and is never freed (the
        // caller's promise).
        let word = unsafe { &*handle.cast::<AtomicU64>() };
        if word.load(Ordering::Relaxed) != T::WORD {
            return Err(bad("of another kind"));
        }
        // SAFETY: as above; its word shows that it is of this kind.
        let shell: &'static Shell<T> = unsafe { &*handle };
        if shell.busy.swap(true, Ordering::Acquire) {
            let text = format!("another thread is using this {}", T::NAME);
            return Err(Failure::new(WAVE_RPC_BUSY, text));
        }
        let entered = Entered { shell, _inner: PhantomData };
        // SAFETY: `busy` was taken just now, by this thread.
        if unsafe { &*shell.inner.get() }.is_none() {
            return Err(Failure::new(WAVE_RPC_STOPPED, "the server was stopped"));
        }
        Ok(entered)
    }
}

/// A handle that this thread has locked.
pub(crate) struct Entered<T: 'static> {
    shell: &'static Shell<T>,
    /// Makes this [`Sync`] where `T` is, and not wherever the shell is.
    _inner: PhantomData<&'static mut T>,
}

impl<T> Entered<T> {
    /// Takes the contents out: from now on the handle belongs to a stopped server.
    pub(crate) fn take(self) -> Option<T> {
        // SAFETY: this thread holds `busy` until `self` is dropped.
        unsafe { &mut *self.shell.inner.get() }.take()
    }
}

impl<T> Deref for Entered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds `busy` as long as `self` exists.
        unsafe { &*self.shell.inner.get() }.as_ref().expect("it was there when it was entered")
    }
}

impl<T> DerefMut for Entered<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { &mut *self.shell.inner.get() }.as_mut().expect("it was there when it was entered")
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        self.shell.busy.store(false, Ordering::Release);
    }
}
