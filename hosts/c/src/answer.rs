//! Return values of functions: a number, and on failure a text that is kept per thread. No panic leaves the library.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use wave_user::rpc::{SendError, ServeError};

/// Success, no event, or false.
pub const WAVE_RPC_OK: i32 = 0;
/// True, or an event was returned.
pub const WAVE_RPC_YES: i32 = 1;
/// Not a handle of this kind.
pub const WAVE_RPC_BAD_HANDLE: i32 = -1;
/// An argument has a value that the function does not take.
pub const WAVE_RPC_BAD_ARGUMENT: i32 = -2;
/// The call is over: it was ended, or its agent has gone.
pub const WAVE_RPC_NOT_OPEN: i32 = -3;
/// The client must read earlier replies first.
pub const WAVE_RPC_BLOCKED: i32 = -4;
/// Headers were sent already, or after a reply.
pub const WAVE_RPC_TOO_LATE: i32 = -5;
/// More bytes than can be sent at once.
pub const WAVE_RPC_TOO_LONG: i32 = -6;
/// The server was stopped.
pub const WAVE_RPC_STOPPED: i32 = -7;
/// Another thread is using the handle.
pub const WAVE_RPC_BUSY: i32 = -8;
/// The system provided no socket, memory or thread.
pub const WAVE_RPC_SYSTEM: i32 = -9;
/// The agent wrote invalid data.
pub const WAVE_RPC_BAD_AGENT: i32 = -10;
/// A bug in this library.
pub const WAVE_RPC_INTERNAL: i32 = -11;

/// The failure of a function, which then has no effect.
pub(crate) struct Failure {
    code: i32,
    text: String,
}

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure::new(WAVE_RPC_BAD_ARGUMENT, text)
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Failure {
        let code = match error {
            SendError::Blocked => WAVE_RPC_BLOCKED,
            SendError::NotOpen => WAVE_RPC_NOT_OPEN,
            SendError::TooLate => WAVE_RPC_TOO_LATE,
            SendError::TooLong(_) => WAVE_RPC_TOO_LONG,
            SendError::Fault(_) => WAVE_RPC_BAD_AGENT,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Failure {
        let code = match error {
            ServeError::Socket(_) | ServeError::System { .. } | ServeError::Pin { .. } => {
                WAVE_RPC_SYSTEM
            }
            ServeError::Config(_)
            | ServeError::Methods(_)
            | ServeError::Spawn(_)
            | ServeError::Cpus { .. } => WAVE_RPC_BAD_ARGUMENT,
        };
        Failure::new(code, error.to_string())
    }
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Runs `what`, converts the result into a number for C, and records the text of a failure.
pub(crate) fn answer(what: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(what)) {
        Ok(Ok(number)) => return number,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(WAVE_RPC_INTERNAL, "a bug in this library; stderr has the details"),
    };
    let text: Vec<u8> = failure.text.bytes().filter(|byte| *byte != 0).collect();
    // The text of an exiting thread may already be destroyed.
    let _ = TEXT.try_with(|own| {
        if let (Ok(mut own), Ok(text)) = (own.try_borrow_mut(), CString::new(text)) {
            *own = text;
        }
    });
    failure.code
}

/// A description of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn wave_rpc_error() -> *const c_char {
    TEXT.try_with(|text| text.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
