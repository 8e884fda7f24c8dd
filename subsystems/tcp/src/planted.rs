//! Faults that the fuzzer plants in this code, to see that its oracles find them.
//!
//! Only with the feature `planted`, which nothing but the package `wave-tcp-planted` turns on: the same files, compiled a second
//! time for the fuzzer. Without the feature every question is answered `false` when it is compiled.

/// A mistake that a TCP engine could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// What a copy makes true is said as soon as any copy is done.
    NoSequencer = 1,
    /// No checksum is verified.
    NoChecksum,
    /// Bytes are acknowledged before they lie in the host's ring.
    EarlyAcknowledgement,
    /// The end of the peer's stream is forgotten where it comes out of order.
    EarlyFinDropped,
    /// Bytes that came out of order are taken out of the window.
    WindowShrunk,
    /// Any SYN ends a connection that is remembered.
    StaleSynTaken,
    /// A timeout is not doubled.
    NoBackOff,
    /// Segments with data count as duplicate acknowledgements.
    DataCountedAsDuplicate,
}

impl Planted {
    /// All faults that can be planted.
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

    /// Its name on a command line.
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

/// Plants a fault for this thread, or none.
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
