//! The symbols of the next library: the C library, or another preloaded one.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A symbol that is looked up at its first use.
pub struct Symbol {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Symbol {
    pub const fn new(name: &'static CStr) -> Symbol {
        Symbol { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The symbol's address. Panics if no library has it, which ends the process. Only names of the C library are looked up.
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name is null-terminated. The C library allocates nothing here if it finds the symbol.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        assert!(!found.is_null(), "the C library has no {:?}", self.name);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// `next!(name(a: A, b: B) -> R)`: calls the next library's function of this name with these arguments.
macro_rules! next {
    ($name:ident($($argument:expr => $kind:ty),* $(,)?) -> $result:ty) => {{
        static SYMBOL: $crate::interpose::next::Symbol = $crate::interpose::next::Symbol::new(
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a symbol's name contains no zero byte"),
            },
        );
        // SAFETY: the C library declares it with these types; its contract is that of the calling function.
        unsafe {
            let function: unsafe extern "C-unwind" fn($($kind),*) -> $result =
                std::mem::transmute($crate::interpose::next::Symbol::get(&SYMBOL));
            function($($argument),*)
        }
    }};
}

/// As `next!`, for a cancellation point. Our own code, and what it is made of, calls these symbols too: there it is none.
macro_rules! next_point {
    ($($call:tt)*) => {
        if $crate::signals::is_inside() {
            $crate::sys::without_cancellation(|| $crate::interpose::next::next!($($call)*))
        } else {
            $crate::interpose::next::next!($($call)*)
        }
    };
}

pub(crate) use {next, next_point};
