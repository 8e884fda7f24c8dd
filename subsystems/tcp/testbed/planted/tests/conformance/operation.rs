//! The operations of the model, and how they are drawn.

use proptest::prelude::*;
use wave_tcp::datapath::Command;

/// Places for connections. A place has at most one at a time.
pub const PLACES: usize = 3;

/// What happens to a data path next. Numbers are reduced to what is possible when it happens.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// The control plane installs a connection.
    Install(usize),
    /// A segment of the peer arrives.
    Arrive(usize, Arrival),
    /// The peer's stream ends with the bytes sent so far.
    EndPeer(usize),
    /// A frame arrives that belongs to no connection.
    Stranger,
    /// The host writes, and its request is lost unless `tells`.
    Write {
        at: usize,
        bytes: u16,
        tells: bool,
    },
    /// The host reads, and its request is lost unless `tells`.
    Read {
        at: usize,
        bytes: u16,
        tells: bool,
    },
    /// The host ends its stream.
    End(usize),
    /// The host's last request comes again, or an earlier one.
    Repeat {
        at: usize,
        back: usize,
    },
    /// A request with a position that is impossible.
    Wrong {
        at: usize,
        written: bool,
    },
    /// A request of another process.
    Foreign(usize),
    /// A copy or a transmission is done: any of those under way.
    Complete(usize),
    /// A ticket of a copy that is done already, or never began.
    CompleteUnknown(u64),
    /// A poll.
    Poll(usize),
    /// All that is under way ends, and nothing is left to do at this time.
    Settle,
    /// Time passes.
    Wait {
        micros: u32,
    },
    /// A command of the control plane.
    Command(usize, Command),
    /// A command, a request or a limit for a connection that has gone.
    Gone {
        which: usize,
        command: Command,
    },
    /// Congestion control sets the window.
    Pace {
        at: usize,
        segments: u8,
    },
    /// The path's segments change.
    SetPath {
        at: usize,
        mss: u16,
    },
    /// The control plane reads statistics.
    Statistics(usize),
    Freeze(usize),
    /// The control plane tries to export a connection, frozen or not.
    Export(usize),
    /// It removes a connection: freezes it, waits, exports it, and forgets it.
    Remove(usize),
    /// It restores an exported connection: in the same data path, or in the other one if `moves`.
    Restore {
        at: usize,
        moves: bool,
    },
}

/// A segment of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Distance of its first byte from the last byte that the data path has acknowledged.
    pub skip: i16,
    pub bytes: u16,
    pub ack: Ack,
    /// The peer's window in bytes.
    pub window: u16,
    /// It ends with the last byte that the peer has sent, if that is after its first.
    pub is_last: bool,
    /// The network has marked the packet.
    pub is_marked: bool,
    /// A bit of the payload is wrong, and so is the checksum.
    pub is_corrupt: bool,
}

/// What a segment of the peer acknowledges.
#[derive(Clone, Copy, Debug)]
pub enum Ack {
    /// All bytes that have arrived in order.
    All,
    /// What the peer's last segment has acknowledged.
    Same,
    /// Bytes that were never sent.
    Unsent,
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        4 => Just(Command::Retransmit),
        4 => Just(Command::Probe),
        2 => Just(Command::KeepAlive),
        2 => Just(Command::Challenge),
        2 => Just(Command::DetectLoss),
        2 => Just(Command::ProbeTail),
        1 => Just(Command::Uncork),
        1 => Just(Command::Abort),
        1 => Just(Command::Refuse),
    ]
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let skip = prop_oneof![6 => Just(0), 3 => -3_000_i16..6_000, 1 => any::<i16>()];
    let bytes = prop_oneof![2 => Just(0), 6 => 1_u16..2_000];
    let ack = prop_oneof![6 => Just(Ack::All), 3 => Just(Ack::Same), 1 => Just(Ack::Unsent)];
    let window = prop_oneof![4 => Just(u16::MAX), 2 => 0_u16..5_000, 1 => Just(0)];
    let flag = |share| prop::bool::weighted(share);
    let flags = (flag(0.2), flag(0.1), flag(0.05));
    (skip, bytes, ack, window, flags).prop_map(
        |(skip, bytes, ack, window, (is_last, is_marked, is_corrupt))| Arrival {
            skip,
            bytes,
            ack,
            window,
            is_last,
            is_marked,
            is_corrupt,
        },
    )
}

pub fn operation() -> impl Strategy<Value = Operation> {
    let at = 0..PLACES;
    let tells = prop::bool::weighted(0.7);
    prop_oneof![
        8 => at.clone().prop_map(Operation::Install),
        24 => (at.clone(), arrival()).prop_map(|(at, arrival)| Operation::Arrive(at, arrival)),
        2 => at.clone().prop_map(Operation::EndPeer),
        1 => Just(Operation::Stranger),
        12 => (at.clone(), any::<u16>(), tells)
            .prop_map(|(at, bytes, tells)| Operation::Write { at, bytes, tells }),
        8 => (at.clone(), any::<u16>(), tells)
            .prop_map(|(at, bytes, tells)| Operation::Read { at, bytes, tells }),
        1 => at.clone().prop_map(Operation::End),
        4 => (at.clone(), 0_usize..4).prop_map(|(at, back)| Operation::Repeat { at, back }),
        1 => (at.clone(), any::<bool>()).prop_map(|(at, written)| Operation::Wrong { at, written }),
        1 => at.clone().prop_map(Operation::Foreign),
        16 => any::<usize>().prop_map(Operation::Complete),
        2 => any::<u64>().prop_map(Operation::CompleteUnknown),
        24 => (0_usize..40).prop_map(Operation::Poll),
        6 => Just(Operation::Settle),
        8 => prop_oneof![0_u32..1_000, 0_u32..60_000].prop_map(|micros| Operation::Wait { micros }),
        6 => (at.clone(), command()).prop_map(|(at, command)| Operation::Command(at, command)),
        3 => (any::<usize>(), command())
            .prop_map(|(which, command)| Operation::Gone { which, command }),
        2 => (at.clone(), 1_u8..40).prop_map(|(at, segments)| Operation::Pace { at, segments }),
        1 => (at.clone(), 400_u16..1_400).prop_map(|(at, mss)| Operation::SetPath { at, mss }),
        6 => (0_usize..4).prop_map(Operation::Statistics),
        4 => at.clone().prop_map(Operation::Freeze),
        8 => at.clone().prop_map(Operation::Export),
        5 => at.clone().prop_map(Operation::Remove),
        8 => (at, any::<bool>()).prop_map(|(at, moves)| Operation::Restore { at, moves }),
    ]
}
