//! Faults that a test plants in this code, to see that they are found.
//!
//! Only with the feature `planted`, which only tests turn on; without it [`is_planted`] is `false` at
//! compile time.

/// A mistake that this code could make: each breaks a rule of the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// The host leaves what it wrote in its write-combining buffers.
    MissingFence = 1,
    /// A reader does not drop a write-through line before it looks again.
    MissingFlush,
    /// The agent does not kick a core that sleeps.
    DroppedKick,
    /// The host commits a decision for another generation of its thread.
    GenerationUnchecked,
    /// The host commits a decision for an earlier state of its thread.
    SequenceUnchecked,
    /// The agent delivers messages in the order of their arrival.
    OrderNotKept,
    /// A core keeps taking decisions from an agent that was replaced.
    RevokedHeard,
    /// An outcome is reported twice.
    OutcomeTwice,
    /// The agent checks whether a core sleeps before the decision for it has arrived.
    AgentMissingFence,
    /// A core goes to sleep without checking its queue after it announced that.
    NoSecondLook,
    /// Decisions that were refused count as work for a core.
    RefusalsCountAsWork,
    /// A core that comes back online while it refuses the decisions in its queue commits the rest.
    BackTooSoon,
    /// A kick reaches a context of another enclave as well.
    StrayKick,
    /// A core's own timer does not end a run.
    SliceForgotten,
    /// A core's own timer ends a run before its slice is over.
    SliceCutShort,
    /// The message of a thread that leaves its core names another class than the thread's.
    ClassForgotten,
    /// The host runs no threads while no agent decides.
    FallbackForgotten,
}

impl Planted {
    /// All faults that can be planted.
    pub const ALL: [Planted; 17] = [
        Planted::MissingFence,
        Planted::MissingFlush,
        Planted::DroppedKick,
        Planted::GenerationUnchecked,
        Planted::SequenceUnchecked,
        Planted::OrderNotKept,
        Planted::RevokedHeard,
        Planted::OutcomeTwice,
        Planted::AgentMissingFence,
        Planted::NoSecondLook,
        Planted::RefusalsCountAsWork,
        Planted::BackTooSoon,
        Planted::StrayKick,
        Planted::SliceForgotten,
        Planted::SliceCutShort,
        Planted::ClassForgotten,
        Planted::FallbackForgotten,
    ];
}

#[cfg(feature = "planted")]
static NOW: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Plants a fault for the whole process, or none.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Planted>) {
    let number = fault.map_or(0, |fault| fault as u8);
    NOW.store(number, core::sync::atomic::Ordering::SeqCst);
}

/// Whether `fault` is the planted one.
#[inline(always)]
pub fn is_planted(fault: Planted) -> bool {
    #[cfg(feature = "planted")]
    return NOW.load(core::sync::atomic::Ordering::Relaxed) == fault as u8;
    #[cfg(not(feature = "planted"))]
    {
        let _ = fault;
        false
    }
}
