//! The next library's symbols: the C library's, or those of another preloaded one.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A symbol, looked up when it is first needed.
pub struct Symbol {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Symbol {
    pub const fn new(name: &'static CStr) -> Symbol {
        Symbol { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. Panics if no library has it, which no call of ours outlives: it is only asked for under a name of the C library.
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a zero. The C library allocates nothing here if it finds the symbol.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        assert!(!found.is_null(), "the C library has no {:?}", self.name);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// `next!(name(a: A, b: B) -> R)`: calls the next library's function of this name with these arguments.
macro_rules! next {
    ($name:ident($($argument:expr => $kind:ty),* $(,)?) -> $result:ty) => {{
        static SYMBOL: $crate::skin::next::Symbol = $crate::skin::next::Symbol::new(
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero"),
            },
        );
        // SAFETY: the C library declares it with these types; its contract is that of the function which calls it.
        unsafe {
            let function: unsafe extern "C" fn($($kind),*) -> $result =
                std::mem::transmute($crate::skin::next::Symbol::get(&SYMBOL));
            function($($argument),*)
        }
    }};
}

pub(crate) use next;
