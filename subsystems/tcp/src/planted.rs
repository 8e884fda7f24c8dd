//! Faults that the fuzzer and the conformance suite plant in this code, to check that their oracles find them.
//!
//! They need the feature `planted`, which only the package `wave-tcp-planted` turns on: the same files, compiled a second time
//! for the fuzzer. Without the feature, [`is_planted`] is the constant `false`.

/// A mistake that a TCP engine could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// The effects of a copy take place as soon as any copy is done.
    NoSequencer = 1,
    /// No checksum is verified.
    NoChecksum,
    /// Bytes are acknowledged before they are in the host's ring.
    EarlyAcknowledgement,
    /// A FIN that arrives out of order is forgotten.
    EarlyFinDropped,
    /// The window shrinks by the bytes received out of order.
    WindowShrunk,
    /// Any SYN ends a connection in TIME_WAIT.
    StaleSynTaken,
    /// Timeouts do not back off.
    NoBackOff,
    /// Segments with data count as duplicate acknowledgements.
    DataCountedAsDuplicate,
    /// A connection is frozen while copies and transmissions are under way.
    FrozenWhileCopying,
    /// The name of a connection that has gone means the one that has its place.
    OldNamesObeyed,
    /// A poll exceeds its budget.
    BudgetExceeded,
}

impl Planted {
    /// The faults that the fuzzer plants. The others break the contract of a data path alone, and its conformance suite plants them.
    pub const ALL: [Planted; 8] = [
        Planted::NoSequencer,
        Planted::NoChecksum,
        Planted::EarlyAcknowledgement,
        Planted::EarlyFinDropped,
        Planted::WindowShrunk,
        Planted::StaleSynTaken,
        Planted::NoBackOff,
        Planted::DataCountedAsDuplicate,
    ];

    /// The fault's name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Planted::NoSequencer => "no-sequencer",
            Planted::NoChecksum => "no-checksum",
            Planted::EarlyAcknowledgement => "ack-before-dma",
            Planted::EarlyFinDropped => "out-of-order-fin-dropped",
            Planted::WindowShrunk => "window-shrunk",
            Planted::StaleSynTaken => "stale-syn-taken",
            Planted::NoBackOff => "rto-without-back-off",
            Planted::DataCountedAsDuplicate => "duplicate-ack-on-data",
            Planted::FrozenWhileCopying => "frozen-while-copying",
            Planted::OldNamesObeyed => "old-names-obeyed",
            Planted::BudgetExceeded => "budget-exceeded",
        }
    }

    /// The fault with this name.
    pub fn by_name(name: &str) -> Option<Planted> {
        Planted::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

#[cfg(feature = "planted")]
std::thread_local! {
    static NOW: core::cell::Cell<Option<Planted>> = const { core::cell::Cell::new(None) };
}

/// Plants a fault for this thread; `None` removes it.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Planted>) {
    NOW.set(fault);
}

/// Whether `fault` is the planted one.
#[inline(always)]
pub fn is_planted(fault: Planted) -> bool {
    #[cfg(feature = "planted")]
    return NOW.get() == Some(fault);
    #[cfg(not(feature = "planted"))]
    {
        let _ = fault;
        false
    }
}
