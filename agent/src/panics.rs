//! Panics of policies, in one sentence.
//!
//! A policy is its user's code. If it panics, a command reports that in one sentence, like any other mistake in its
//! input. With `RUST_BACKTRACE=full`, the backtrace is printed as well; many shells set it to 1 for all programs.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{
    AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook,
};
use std::sync::Once;

thread_local! {
    /// Number of [`caught`] calls that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The last panic of this thread within [`caught`], in words.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A sentence that unwinds to the next [`caught`]; see [`give_up`].
struct GivenUp(String);

/// Runs `work`. A panic on this thread is returned as `panic at FILE:LINE:COLUMN: MESSAGE`, and prints nothing unless
/// `RUST_BACKTRACE` is `full`.
///
/// # Errors
/// `work` has panicked, or has [given up](give_up).
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 || wants_backtrace() {
                usual(info);
            }
            LAST.set((DEPTH.get() > 0).then(|| words(info)));
        }));
    });
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(depth);
    done.map_err(|panic| match panic.downcast::<GivenUp>() {
        Ok(given_up) => given_up.0,
        Err(panic) => last().unwrap_or_else(|| message(&*panic).to_owned()),
    })
}

/// Takes the message of this thread's last panic within [`caught`], even if `work` has caught the panic itself.
pub fn last() -> Option<String> {
    LAST.take()
}

/// Ends the enclosing [`caught`] with this sentence, from within calls that return no error.
pub fn give_up(why: String) -> ! {
    resume_unwind(Box::new(GivenUp(why)))
}

fn wants_backtrace() -> bool {
    std::env::var_os("RUST_BACKTRACE").is_some_and(|wanted| wanted == "full")
}

fn words(info: &PanicHookInfo<'_>) -> String {
    let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
    format!("panic{place}: {}", message(info.payload()))
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_sentence_with_its_place() {
        let said = caught(|| -> u32 { panic!("boom {}", 7) }).unwrap_err();
        assert!(said.starts_with("panic at ") && said.contains("panics.rs:"), "{said}");
        assert!(said.ends_with(": boom 7") && !said.contains('\n'), "{said}");
        assert_eq!(caught(|| 5), Ok(5));
    }

    #[test]
    fn a_panic_that_work_catches_itself_is_known_and_giving_up_has_its_own_words() {
        caught(|| drop(catch_unwind(|| panic!("inner")))).unwrap();
        assert!(last().is_some_and(|said| said.ends_with(": inner")));
        assert_eq!(
            caught(|| give_up("it has ended".to_owned())),
            Err::<(), _>("it has ended".into())
        );
    }
}
