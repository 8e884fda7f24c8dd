//! The outcome of a decision: a typed code (ghOSt's transaction states, AFFINITY and further codes).

use crate::message::TxnId;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// The typed result of one decision. All but [`Code::Complete`] are refusals; of these,
        /// stale targets, targets not found and unavailable CPUs occur in normal operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Code {
            $($(#[$doc])* $name = $number,)*
        }

        impl Code {
            /// All codes, in the order of their numbers.
            pub const ALL: &[Code] = &[$(Code::$name),*];

            /// The code with this number; `None` for a number that no code has.
            pub const fn from_number(number: u8) -> Option<Code> {
                match number { $($number => Some(Code::$name),)* _ => None }
            }

            /// Its name in logs and results.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// Committed: the core runs it. Starts the slice.
    Complete = 1, "COMPLETE";
    /// The agent took it back before the host read it.
    Aborted = 2, "ABORTED";
    /// The target runs already, on this core or another.
    TargetOnCpu = 3, "TARGET_ON_CPU";
    /// The sequence is not the target's: something happened that the agent had not seen.
    TargetStale = 4, "TARGET_STALE";
    /// No such target: its id was never given, or now belongs to another generation.
    TargetNotFound = 5, "TARGET_NOT_FOUND";
    /// The target is blocked, and cannot run before it is woken.
    TargetNotRunnable = 6, "TARGET_NOT_RUNNABLE";
    /// The agent that made it has been replaced.
    AgentStale = 7, "AGENT_STALE";
    /// The target core is offline.
    CpuOffline = 8, "CPU_OFFLINE";
    /// A higher class owns the core.
    CpuUnavailable = 9, "CPU_UNAVAIL";
    /// Flags that the host does not know.
    InvalidFlags = 10, "INVALID_FLAGS";
    /// A target that cannot be scheduled at all.
    InvalidTarget = 11, "INVALID_TARGET";
    /// The target or the core is another enclave's.
    NotPermitted = 12, "NOT_PERMITTED";
    /// The decision names a core that does not exist.
    InvalidCpu = 13, "INVALID_CPU";
    /// No agent is attached to the enclave.
    NoAgent = 14, "NO_AGENT";
    /// An entry that this version of the host does not know.
    UnsupportedVersion = 15, "UNSUPPORTED_VERSION";
    /// Another member of its all-or-nothing group failed.
    Poisoned = 16, "POISONED";
    /// The target may not run on this core.
    Affinity = 17, "AFFINITY";
    /// The host cannot commit such a group, or end a run as the decision asks.
    Unsupported = 18, "UNSUPPORTED";
    /// A limit of the host holds it back: it may succeed later.
    Held = 19, "HELD";
    /// Carried out for a part of the target. The rest is unchanged, and may succeed later.
    Partial = 20, "PARTIAL";
}

/// The result of one decision, and the core's run number after it. One word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of the decision in the core's queue.
    pub txn: TxnId,
    /// Result of the decision, for the agent that sent it.
    pub code: Code,
    /// The core's count of switches. Of a [`Code::Complete`] it names the run that a preemption
    /// would end.
    pub run: u32,
}

impl Outcome {
    /// As one word: run in the high half, code in the lowest byte.
    pub const fn to_word(self) -> u64 {
        (self.run as u64) << 32 | (self.txn.number() as u64) << 8 | self.code as u64
    }

    /// Decodes a word; `None` if its code is unknown.
    #[inline]
    pub const fn from_word(word: u64) -> Option<Outcome> {
        match Code::from_number(word as u8) {
            Some(code) => Some(Outcome {
                txn: TxnId::new((word >> 8) as u32),
                code,
                run: (word >> 32) as u32,
            }),
            None => None,
        }
    }
}

/// How often each code was answered.
#[derive(Clone, Debug, Default)]
pub struct Counts([u64; Code::ALL.len() + 1]);

impl Counts {
    /// Adds one to the count of `code`.
    #[inline]
    pub fn add(&mut self, code: Code) {
        self.0[code as usize] += 1;
    }

    /// How often `code` was answered.
    pub fn get(&self, code: Code) -> u64 {
        self.0[code as usize]
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Counts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Codes that were answered at least once, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Code, u64)> + '_ {
        Code::ALL.iter().map(|&code| (code, self.get(code))).filter(|(_, count)| *count > 0)
    }
}
