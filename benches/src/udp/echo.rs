//! The peer: a process that sends each datagram back, by `recvmmsg` and `sendmmsg`, and does nothing else.

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
use wave_experiments::measure::pin;
use wave_lab::terminal::out;

/// Datagrams of one system call, at most: as many as a front takes.
const BATCH: usize = 32;
/// As a front's.
const BUFFER_BYTES: usize = 1 << 16;

/// `wave-bench udp-echo CPU`: prints its address, and echoes until it is killed.
pub fn echo(cpu: usize) -> Result<(), String> {
    pin(cpu)?;
    let failed = |error: &dyn std::fmt::Display| format!("the bare echo: {error}");
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(|error| failed(&error))?;
    out!("{}", socket.local_addr().map_err(|error| failed(&error))?);
    let fd = socket.as_raw_fd();
    let mut bytes = vec![0; BATCH * BUFFER_BYTES];
    // Addresses are as long as the first ones, so what the kernel writes into these need not be reset.
    let mut received = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    let mut sent = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    let (mut lengths, mut senders) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    loop {
        lengths.clear();
        senders.clear();
        let mut buffers: Vec<_> =
            bytes.chunks_mut(BUFFER_BYTES).map(|buffer| [IoSliceMut::new(buffer)]).collect();
        // Sleeps until there is one, and takes what else there is.
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
