//! Connections that become streams of the kernel's.

use wave_posix::demotion::Cause;

use super::agents::Network;
use super::blocking::{accept, close, connect, listener};
use crate::sockets::Verdict;
use crate::sys;

/// Each is asked for as soon as the agent knows that it is shared. Random programs found this: seed 3349.
#[test]
fn connections_of_a_process_become_streams_of_the_kernels_one_after_the_other() {
    let network = Network::new();
    let (client, server) = (network.sockets(0), network.sockets(1));
    let there = listener(&server, 1);
    for at in 0..200 {
        let fd = connect(&client, 0);
        let accepted = accept(&server, there);
        // The agent has requests to handle.
        let own = listener(&client, 0);
        client.demote(fd, Cause::Splice);
        let received = client.receive(fd, &mut [], libc::MSG_DONTWAIT);
        assert_eq!(received, Verdict::Kernels, "connection {at}");
        sys::close(fd);
        close(&client, &[own]);
        close(&server, &[accepted]);
    }
    close(&server, &[there]);
}
