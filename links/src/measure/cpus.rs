//! Pinning threads, and restoring their CPUs.

use wave_process::cpus::pin_thread;
pub(super) use wave_process::cpus::{allowed, pin};

/// Restores the calling thread's CPUs on drop. Must stay in its thread.
pub(super) struct Pinned {
    before: Option<Vec<usize>>,
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The thread had these CPUs before; if it may not use some of them any more, the system's decision stands.
            let _ = pin_thread(0, before);
        }
    }
}

/// Pins this thread to the first CPU that it may use. Also returns this CPU and the last one that it
/// may use, if they differ.
pub(super) fn pin_here(warnings: &mut Vec<String>) -> (Pinned, Option<(usize, usize)>) {
    let not_pinned = Pinned { before: None, _not_send: std::marker::PhantomData };
    let before = match allowed() {
        Ok(before) => before,
        Err(error) => {
            warnings.push(format!("cannot read this thread's CPUs: {error}"));
            return (not_pinned, None);
        }
    };
    let (Some(&first), Some(&last)) = (before.first(), before.last()) else {
        return (not_pinned, None);
    };
    let pinned = match pin(&[first]) {
        Ok(()) => Pinned { before: Some(before), ..not_pinned },
        Err(error) => {
            warnings.push(error.to_string());
            not_pinned
        }
    };
    (pinned, (first != last).then_some((first, last)))
}
