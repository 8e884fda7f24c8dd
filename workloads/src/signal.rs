//! A baseline for preemption: the time from sending a signal to another thread until its handler runs.

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::cpu::monotonic_ns;
use wave_process::cpus;

/// The signal to send. No other part of this project uses it.
const SIGNAL: libc::c_int = libc::SIGUSR2;

/// Time at which the handler ran; 0 before.
static HANDLED_NS: AtomicU64 = AtomicU64::new(0);
/// Held during a measurement, since the process has only one handler.
static MEASURES: Mutex<()> = Mutex::new(());

extern "C" fn handler(_signal: libc::c_int) {
    // Reading the clock and an atomic store are safe in a handler.
    HANDLED_NS.store(monotonic_ns(), Ordering::Release);
}

/// Sends `rounds` signals by tgkill(2) from `sender_cpu` to a thread that spins on `receiver_cpu`, with
/// `rest_ns` in between. Returns for each the nanoseconds from before the call to the handler's first instruction.
///
/// Uses SIGUSR2, and restores its handler.
pub fn to_handler_ns(
    sender_cpu: usize,
    receiver_cpu: usize,
    rounds: usize,
    rest_ns: u64,
) -> io::Result<Vec<u64>> {
    let _one = MEASURES.lock().unwrap_or_else(PoisonError::into_inner);
    let _handled = Handled::install()?;
    let receiver = AtomicI32::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let spins = scope.spawn(|| -> io::Result<()> {
            // SAFETY: takes nothing.
            let id = unsafe { libc::gettid() };
            let pinned = cpus::pin(&[receiver_cpu]);
            receiver.store(id, Ordering::SeqCst);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            pinned
        });
        let sends = scope.spawn(|| {
            let result = cpus::pin(&[sender_cpu]);
            let result = result.and_then(|()| send(&receiver, rounds, rest_ns));
            stop.store(true, Ordering::Relaxed);
            result
        });
        let took = sends.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        spins.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(took)
    })
}

fn send(receiver: &AtomicI32, rounds: usize, rest_ns: u64) -> io::Result<Vec<u64>> {
    let mut took = Vec::with_capacity(rounds);
    let mut id = 0;
    while id == 0 {
        thread::yield_now();
        id = receiver.load(Ordering::SeqCst);
    }
    for _ in 0..rounds {
        let rested_ns = monotonic_ns() + rest_ns;
        while monotonic_ns() < rested_ns {
            std::hint::spin_loop();
        }
        HANDLED_NS.store(0, Ordering::SeqCst);
        let start_ns = monotonic_ns();
        // SAFETY: all arguments are numbers. The thread is alive: it ends only after it is told to stop.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, SIGNAL) };
        if sent != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut handled_ns = 0;
        while handled_ns == 0 {
            handled_ns = HANDLED_NS.load(Ordering::Acquire);
        }
        took.push(handled_ns.saturating_sub(start_ns));
    }
    Ok(took)
}

/// The installed handler. Dropping it restores the previous one.
struct Handled {
    before: libc::sigaction,
}

impl Handled {
    fn install() -> io::Result<Handled> {
        // SAFETY: all zeros is a valid sigaction: an empty mask, no flags, the default handler.
        let [mut ours, mut before]: [libc::sigaction; 2] = unsafe { mem::zeroed() };
        ours.sa_sigaction = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
        ours.sa_flags = libc::SA_RESTART;
        // SAFETY: both point to sigactions; the handler is async-signal-safe.
        match unsafe { libc::sigaction(SIGNAL, &ours, &mut before) } {
            0 => Ok(Handled { before }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Handled {
    fn drop(&mut self) {
        // SAFETY: `before` is the previous action, as the kernel returned it.
        unsafe { libc::sigaction(SIGNAL, &self.before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_is_handled_once_and_the_previous_handler_is_restored() {
        let cpus = cpus::allowed().unwrap();
        let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
        // SAFETY: all zeros is a valid sigaction.
        let [mut before, mut after]: [libc::sigaction; 2] = unsafe { mem::zeroed() };
        // SAFETY: only queries the current action.
        unsafe { libc::sigaction(SIGNAL, ptr::null(), &mut before) };
        let took = to_handler_ns(last, first, 100, 1_000).unwrap();
        // SAFETY: only queries the current action.
        unsafe { libc::sigaction(SIGNAL, ptr::null(), &mut after) };
        assert!(took.len() == 100 && took.iter().all(|&ns| ns > 0), "{took:?}");
        assert_eq!(before.sa_sigaction, after.sa_sigaction);
    }
}
