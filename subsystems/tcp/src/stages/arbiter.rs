//! The arbiter decides about sequence numbers: what a segment brings, what is acknowledged, and what may be sent.

use core::fmt::Debug;
use core::marker::PhantomData;

use wave_core::clock::Nanos;

use super::receive::{Received, receive};
use super::recover::{Recovery, Sack};
use super::transmit::{DataSegment, transmit, window_probe};
use super::update;
use crate::datapath::{Established, FlowId, NoRoom, Settings};
use crate::flow::state::Protocol;
use crate::seq::Seq;
use crate::summary::Summary;

/// Acknowledgement number and window of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The sequence number that we expect next.
    pub ack: Seq,
    /// The window field.
    pub window: u16,
}

/// Decides about the sequence numbers of connections, for the protocol stage. What the decisions change is in [`Protocol`]: the rest of
/// the stage, the control plane and hosts see it there.
pub trait Arbiter: Debug + Sized {
    /// Loss recovery, which names the data to send next.
    type Recovery: Recovery;
    /// Name of the data path.
    const NAME: &'static str;

    /// An arbiter of no connections.
    fn new(settings: &Settings) -> Self;

    /// The state for [`Protocol`]: without what the arbiter holds itself, or cannot hold.
    fn without_own(established: &Established) -> Established;

    /// Adds a connection.
    ///
    /// # Errors
    /// There is no room.
    fn install(&mut self, id: FlowId, established: &Established) -> Result<(), NoRoom>;

    /// Removes a connection with this state.
    fn remove(&mut self, id: FlowId, established: &Established);

    /// Completes a connection's state with what the arbiter keeps by itself.
    fn complete(&self, id: FlowId, established: Established) -> Established;

    /// Processes a received segment. `frame` is valid, and `summary` describes it.
    fn receive(
        &mut self,
        id: FlowId,
        flow: &mut Protocol,
        frame: &[u8],
        summary: &Summary,
        now: Nanos,
    ) -> Received;

    /// A copy to the host's ring is done, and so are all earlier ones: all bytes before `landed` are there. The last `merged` of them
    /// had arrived out of order.
    fn land(&mut self, id: FlowId, flow: &mut Protocol, landed: u64, merged: u32);

    /// Chooses the next segment to send, of at most `bytes_max` bytes; `None` if nothing may be sent.
    fn transmit(
        &mut self,
        id: FlowId,
        flow: &mut Protocol,
        bytes_max: u32,
        now: Nanos,
    ) -> Option<DataSegment>;

    /// Chooses a window probe.
    fn probe(&mut self, id: FlowId, flow: &mut Protocol) -> Option<DataSegment>;

    /// What the next segment acknowledges and advertises.
    fn answer(&mut self, id: FlowId, flow: &mut Protocol) -> Answer;

    /// The host, or the control plane, has changed the connection.
    fn changed(&mut self, id: FlowId, flow: &Protocol);
}

/// The stages' own decisions (FlexTOE).
#[derive(Clone, Copy, Debug)]
pub struct ByStages<R = Sack>(PhantomData<R>);

impl<R> Default for ByStages<R> {
    fn default() -> ByStages<R> {
        ByStages(PhantomData)
    }
}

impl<R: Recovery> Arbiter for ByStages<R> {
    type Recovery = R;
    const NAME: &'static str = "flextoe";

    fn new(_settings: &Settings) -> ByStages<R> {
        ByStages::default()
    }

    fn without_own(established: &Established) -> Established {
        *established
    }

    fn install(&mut self, _id: FlowId, _established: &Established) -> Result<(), NoRoom> {
        Ok(())
    }

    fn remove(&mut self, _id: FlowId, _established: &Established) {}

    fn complete(&self, _id: FlowId, established: Established) -> Established {
        established
    }

    #[inline]
    fn receive(
        &mut self,
        _id: FlowId,
        flow: &mut Protocol,
        _frame: &[u8],
        summary: &Summary,
        now: Nanos,
    ) -> Received {
        receive::<R>(flow, summary, now)
    }

    #[inline]
    fn land(&mut self, _id: FlowId, flow: &mut Protocol, landed: u64, _merged: u32) {
        flow.landed = flow.landed.max(landed);
    }

    #[inline]
    fn transmit(
        &mut self,
        _id: FlowId,
        flow: &mut Protocol,
        bytes_max: u32,
        now: Nanos,
    ) -> Option<DataSegment> {
        transmit::<R>(flow, bytes_max, now)
    }

    fn probe(&mut self, _id: FlowId, flow: &mut Protocol) -> Option<DataSegment> {
        window_probe(flow)
    }

    #[inline]
    fn answer(&mut self, _id: FlowId, flow: &mut Protocol) -> Answer {
        Answer { ack: flow.expected(), window: update::advertise_window(flow) }
    }

    fn changed(&mut self, _id: FlowId, _flow: &Protocol) {}
}
