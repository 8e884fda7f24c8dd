//! How far a process has read of each of its connections, in its window: by these words an agent knows it of a process that has ended,
//! however it did. Requests say it only now and then.
//!
//! A word has the host's name for a connection above, and below it the position, modulo 2^32: a ring is shorter. Connections whose names
//! differ by a multiple of [`WORDS`] have the same word, which then belongs to the one that was read last.

use alloc::vec::Vec;

use wave_core::layout::{Layout, PoolConfig, PoolPlace, PoolScope};
use wave_core::link::{Home, LINE_WORDS, Port, Side, Transport, Window};

/// Number of words of each context.
const WORDS: usize = 1024;

/// The memory of a context's words. The process writes them where the agent reads them: the window is coherent, and nothing is copied.
pub(super) const POOL: PoolConfig = PoolConfig {
    producer: Side::Host,
    scope: PoolScope::Core,
    extents: 1,
    lines: (WORDS / LINE_WORDS) as u16,
    transport: Transport::DmaSync,
    inline_max: 0,
};

/// The words of one context.
#[derive(Clone, Copy, Debug)]
pub struct ReadWords {
    first: u32,
}

impl ReadWords {
    /// The words of a context.
    pub fn of(layout: &Layout, context: u16) -> ReadWords {
        let PoolPlace { target, .. } = layout.pool_of(0, context);
        ReadWords { first: target }
    }

    fn place(&self, at: usize) -> (u32, usize) {
        (self.first + (at / LINE_WORDS) as u32, at % LINE_WORDS)
    }

    /// The process has read `socket`, its name for a connection, up to `position`. Returns the name of the connection to which the word
    /// belonged before.
    pub fn note(&self, port: &impl Port, socket: u32, position: u64) -> u32 {
        let (line, word) = self.place(socket as usize % WORDS);
        let window = port.window(Home::Nic);
        let before = window.load(line, word);
        window.store(line, word, u64::from(socket) << 32 | u64::from(position as u32));
        (before >> 32) as u32
    }
}

/// The words of a process that has ended. Without any, nothing is known beyond what requests have reported.
#[derive(Clone, Debug, Default)]
pub struct LastReads(Vec<u64>);

impl LastReads {
    /// Copies the words of all contexts.
    pub fn of(layout: &Layout, port: &impl Port) -> LastReads {
        let window = port.window(Home::Nic);
        let contexts = (0..layout.config.cores).map(|context| ReadWords::of(layout, context));
        let places = contexts.flat_map(|words| (0..WORDS).map(move |at| words.place(at)));
        LastReads(places.map(|(line, word)| window.load(line, word)).collect())
    }

    /// How far the process has read `socket`, a connection of this context. The process has reported that it has read up to `reported`,
    /// and the connection has received up to `received`.
    pub(crate) fn position(&self, context: u16, socket: u32, reported: u64, received: u64) -> u64 {
        let word = self.0.get(usize::from(context) * WORDS + socket as usize % WORDS);
        let word = word.filter(|word| (**word >> 32) as u32 == socket);
        let more = word.map_or(0, |word| (*word as u32).wrapping_sub(reported as u32));
        // What no process can have read is not believed.
        match reported + u64::from(more) {
            read if read <= received => read,
            _ => reported,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_position_is_found_wherever_it_is_in_the_stream(
            socket in any::<u32>(),
            reported in 0..u64::MAX / 2,
            read in 0..1_u64 << 24,
            more in 0..1_u64 << 24,
        ) {
            let (read, received) = (reported + read, reported + read + more);
            prop_assert_eq!(LastReads::default().position(1, socket, reported, received), reported);
            let mut words = vec![0; 2 * WORDS];
            words[WORDS + socket as usize % WORDS] = u64::from(socket) << 32 | u64::from(read as u32);
            let words = LastReads(words);
            prop_assert_eq!(words.position(1, socket, reported, received), read);
            // Another connection with the same word, and one of another context.
            prop_assert_eq!(words.position(1, socket ^ 1 << 31, reported, received), reported);
            prop_assert_eq!(words.position(0, socket | 1, reported, received), reported);
        }

        #[test]
        fn words_that_a_hostile_process_writes_stay_within_what_has_arrived(
            word in any::<u64>(),
            reported in 0..u64::MAX / 2,
            unread in 0..1_u64 << 24,
        ) {
            let words = LastReads(vec![word; WORDS]);
            let read = words.position(0, (word >> 32) as u32, reported, reported + unread);
            prop_assert!((reported..=reported + unread).contains(&read));
        }
    }
}
