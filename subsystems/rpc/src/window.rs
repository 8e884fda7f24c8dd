//! A call's window: what it may have in flight in one direction. Bytes and messages are limited, as empty messages take room
//! too.

use crate::wire::{WINDOW_BYTES, WINDOW_MESSAGES};

/// A number of messages, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes of all messages together.
    pub bytes: u32,
    /// Number of messages, empty ones included.
    pub messages: u32,
}

impl Load {
    /// The load of one message of `message` bytes.
    pub const fn of(message: u32) -> Load {
        Load { bytes: message, messages: 1 }
    }

    /// Whether the window is full: nothing may follow before some is taken.
    pub const fn is_full(self) -> bool {
        self.bytes >= WINDOW_BYTES || self.messages >= WINDOW_MESSAGES
    }

    /// Whether the load is large enough to report to the other side.
    pub const fn is_much(self) -> bool {
        self.bytes >= WINDOW_BYTES / 2 || self.messages >= WINDOW_MESSAGES / 2
    }

    /// The sum of both loads.
    pub const fn plus(self, more: Load) -> Load {
        Load {
            bytes: self.bytes.saturating_add(more.bytes),
            messages: self.messages.saturating_add(more.messages),
        }
    }

    /// The load without `taken`; `None` if `taken` is more than the load.
    pub const fn minus(self, taken: Load) -> Option<Load> {
        match (self.bytes.checked_sub(taken.bytes), self.messages.checked_sub(taken.messages)) {
            (Some(bytes), Some(messages)) => Some(Load { bytes, messages }),
            _ => None,
        }
    }

    /// The load without `passed`; neither number goes below 0.
    pub const fn less(self, passed: Load) -> Load {
        Load {
            bytes: self.bytes.saturating_sub(passed.bytes),
            messages: self.messages.saturating_sub(passed.messages),
        }
    }

    /// The load as a frame's argument.
    pub const fn to_word(self) -> u64 {
        (self.messages as u64) << 32 | self.bytes as u64
    }

    /// Decodes a frame's argument. Every word is valid.
    pub const fn from_word(word: u64) -> Load {
        Load { bytes: word as u32, messages: (word >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_is_full_by_bytes_or_by_messages() {
        assert!(Load::of(WINDOW_BYTES).is_full());
        assert!(!Load::of(WINDOW_BYTES - 1).is_full());
        let empties = (1..WINDOW_MESSAGES).fold(Load::default(), |load, _| load.plus(Load::of(0)));
        assert!(!empties.is_full() && empties.is_much());
        assert!(empties.plus(Load::of(0)).is_full());
        assert_eq!(empties.minus(empties), Some(Load::default()));
        assert_eq!(empties.minus(Load::of(1)), None);
        assert_eq!(Load::from_word(Load::of(7).to_word()), Load::of(7));
        assert!(Load::from_word(u64::MAX).plus(Load::of(1)).is_full());
    }
}
