//! Signals that arrive inside calls.

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::agents::{ADDRESSES, Network};
use crate::address::{Family, encode};
use crate::signals::{self, RESTART};
use crate::sockets::{Sockets, Verdict};
use crate::sys;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Sets a handler as a program does.
#[allow(unsafe_code, reason = "signal handlers")]
fn handle(signal: c_int, handler: Handler, flags: c_int) {
    // SAFETY: all zero is a valid `sigaction`; the handlers of these tests make calls that signal handlers may make.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags | libc::SA_SIGINFO;
        let next = |new, old| libc::sigaction(signal, new, old);
        signals::replace(signal, &action, ptr::null_mut(), next)
    };
    assert_eq!(done, 0);
}

#[allow(unsafe_code, reason = "signals")]
fn raise(signal: c_int) {
    // SAFETY: no memory is involved.
    unsafe { libc::raise(signal) };
}

fn ours<T>(verdict: Verdict<T>) -> Result<T, Errno> {
    match verdict {
        Verdict::Ours(answer) => answer,
        Verdict::Kernels => panic!("the call was left to the kernel"),
    }
}

static RUNS: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    assert!(!signals::is_inside());
    RUNS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn signal_inside_a_call_is_handled_at_its_end_and_ends_its_sleep() {
    handle(libc::SIGUSR1, count, libc::SA_RESTART);
    let runs = || RUNS.load(Ordering::SeqCst);
    signals::enter(|| {
        raise(libc::SIGUSR1);
        signals::enter(|| raise(libc::SIGUSR1));
        assert_eq!(runs(), 0);
        // It would sleep for ever.
        assert_eq!(signals::sleep(&mut [], None, None), Err(Errno::INTR));
        assert_eq!(runs(), 0);
    });
    // The same signal is pending once.
    assert_eq!(runs(), 1);
    raise(libc::SIGUSR1);
    assert_eq!(runs(), 2);

    // A call is made again if the handler allows that.
    let mut made = 0;
    let mut call = || {
        made += 1;
        if made % 2 == 1 {
            raise(libc::SIGUSR1);
            return Err(RESTART);
        }
        Ok(made)
    };
    assert_eq!(signals::waits(&mut call), Ok(2));
    handle(libc::SIGUSR1, count, 0);
    assert_eq!(signals::waits(&mut call), Err(Errno::INTR));
    assert_eq!(runs(), 4);
}

#[test]
fn replaced_symbols_may_unwind() {
    // Cancellations, and exceptions from handlers, unwind through them: through any other function they abort.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/interpose");
    let mut symbols = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for symbol in text.split("#[unsafe(no_mangle)]\n").skip(1) {
            let line = symbol.lines().next().unwrap();
            assert!(line.contains("extern \"C-unwind\" fn"), "{}: {line}", path.display());
            symbols += 1;
        }
    }
    assert!(symbols > 60, "{symbols}");
}

static SOCKETS: AtomicPtr<Sockets> = AtomicPtr::new(ptr::null_mut());
static FD: AtomicI32 = AtomicI32::new(-1);

#[allow(unsafe_code, reason = "a pointer for a signal handler")]
extern "C" fn answer(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the test keeps the sockets until its threads have ended.
    let sockets = unsafe { &*SOCKETS.load(Ordering::Acquire) };
    let sent = sockets.send(FD.load(Ordering::Relaxed), &[IoSlice::new(b"h")], 0);
    assert_eq!(sent, Verdict::Ours(Ok(1)));
}

#[test]
#[allow(unsafe_code, reason = "signals for a thread")]
fn handler_sends_on_the_socket_whose_receive_it_interrupts() {
    const SIGNALS: usize = 200;
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let socket = || {
        let flags = SocketFlags::CLOEXEC;
        socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap().into_raw_fd()
    };
    let (listener, fd) = (socket(), socket());
    let to = encode(SocketAddr::new(IpAddr::V4(ADDRESSES[1]), 7001), Family::V4);
    ours(server.bind(listener, to.bytes())).unwrap();
    ours(server.listen(listener, 16)).unwrap();
    ours(client.connect(fd, to.bytes())).unwrap();
    let there = ours(server.accept(listener, 0)).unwrap().fd;
    SOCKETS.store(ptr::from_ref::<Sockets>(&server).cast_mut(), Ordering::Release);
    FD.store(there, Ordering::Relaxed);
    handle(libc::SIGUSR2, answer, libc::SA_RESTART);
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let server = &server;
        let receives = scope.spawn(move || {
            // SAFETY: no memory is involved.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            let mut byte = [0];
            let received = server.receive(there, &mut [IoSliceMut::new(&mut byte)], 0);
            (received, byte)
        });
        let thread = told.recv().unwrap();
        for _ in 0..SIGNALS {
            // SAFETY: the thread waits for a byte that is sent below.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            let mut byte = [0];
            let received = client.receive(fd, &mut [IoSliceMut::new(&mut byte)], 0);
            assert_eq!((received, byte), (Verdict::Ours(Ok(1)), *b"h"));
        }
        assert_eq!(client.send(fd, &[IoSlice::new(b"e")], 0), Verdict::Ours(Ok(1)));
        assert_eq!(receives.join().unwrap(), (Verdict::Ours(Ok(1)), *b"e"));
    });
    for (sockets, fd) in [(&client, fd), (&server, there), (&server, listener)] {
        sockets.close(fd).unwrap();
        sys::close(fd);
    }
}
