//! The peer: a process that only echoes datagrams, by `recvmmsg` and `sendmmsg`.

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
use wave_experiments::measure::pin;
use wave_terminal::out;

/// Most datagrams per system call, as in a front.
const BATCH: usize = 32;
/// Size of a buffer, as in a front.
const BUFFER_BYTES: usize = 1 << 16;

/// `wave-bench udp-echo CPU`: prints its address, and echoes until it is killed.
pub fn echo(cpu: usize) -> Result<(), String> {
    pin(cpu)?;
    let failed = |error: &dyn std::fmt::Display| format!("the bare echo: {error}");
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(|error| failed(&error))?;
    out!("{}", socket.local_addr().map_err(|error| failed(&error))?);
    let fd = socket.as_raw_fd();
    let mut bytes = vec![0; BATCH * BUFFER_BYTES];
    // All addresses have the same length, so the lengths that the kernel writes into these need no reset.
    let mut received = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    let mut sent = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    let (mut lengths, mut senders) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    loop {
        lengths.clear();
        senders.clear();
        let mut buffers: Vec<_> =
            bytes.chunks_mut(BUFFER_BYTES).map(|buffer| [IoSliceMut::new(buffer)]).collect();
        // Sleeps until a datagram arrives, and receives all that are queued.
        let wait = MsgFlags::MSG_WAITFORONE;
        match recvmmsg(fd, &mut received, buffers.iter_mut(), wait, None) {
            Ok(all) => {
                for message in all {
                    lengths.push(message.bytes);
                    senders.push(message.address);
                }
            }
            Err(Errno::EINTR | Errno::ECONNREFUSED) => continue,
            Err(error) => return Err(failed(&error)),
        }
        let datagrams = bytes.chunks(BUFFER_BYTES).zip(&lengths);
        let slices: Vec<_> =
            datagrams.map(|(buffer, length)| [IoSlice::new(&buffer[..*length])]).collect();
        sendmmsg(fd, &mut sent, &slices, &senders, [], MsgFlags::empty())
            .map_err(|error| failed(&error))?;
    }
}
