//! The data paths of a front: one on the front's own thread, or one for each flow group ([`Groups`](crate::Groups)).

use std::os::fd::BorrowedFd;

use wave_core::clock::Nanos;
use wave_links::LentPayload;
use wave_tcp::datapath::Datapath;
use wave_tcp::steering::Steering;
use wave_wires::Frame;

/// Most steps of the data path in one poll.
pub(crate) const STEPS_PER_POLL: usize = 64;
/// Most polls in a turn.
pub(crate) const POLLS_PER_TURN: usize = 4;
/// Most frames that are taken from a wire in a turn.
pub(crate) const FRAMES_PER_TURN: usize = 64;

/// A data path that a front can serve, whatever threads it has. By default there are none.
pub trait FrontDatapath: Datapath<Frame> {
    /// Number of threads that touch the payload memory of processes, besides the front's.
    fn threads(&self) -> usize {
        0
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no room for one.
    fn begin(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    /// Stops the threads, so that [`Datapath::poll`] does all work, and takes no frames any more.
    fn pause(&mut self) {}

    /// Lets the threads go on.
    fn unpause(&mut self) {}

    /// Loses segments that wait for a wire, as any cable may.
    fn discard_held(&mut self, _now: Nanos) {}

    /// Stops the threads for a look at many flows, without any other change.
    fn suspend(&self) {}

    /// Ends [`FrontDatapath::suspend`].
    fn release(&self) {}

    /// A process was let in; `payloads` has a mapping of its memory for each thread.
    fn add_process(&mut self, _process: u16, _payloads: Vec<LentPayload>) {}

    /// The memory of a process is no longer used.
    fn remove_process(&mut self, _process: u16) {}

    /// Why the front must end, if it must: a thread or a wire of a data path has failed.
    fn failure(&self) -> Option<String> {
        None
    }

    /// The front is about to sleep, and polls once more before it does.
    fn prepare_park(&mut self) {}

    /// The front is awake.
    fn unpark(&mut self) {}

    /// Assignment of flows to data paths that have wires of their own, and the descriptors of these wires. `None`: the front's
    /// wire is the only one.
    fn spread(&self) -> Option<(Steering, Vec<BorrowedFd<'_>>)> {
        None
    }

    /// Packets that arrived at a group other than their connection's.
    fn astray(&self) -> u64 {
        0
    }
}

/// A data path on the front's own thread.
impl<D: Datapath<Frame> + ?Sized> FrontDatapath for Box<D> {}
