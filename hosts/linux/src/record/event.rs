//! Events about the kernel's threads, as `bpf/record.bpf.c` writes them.

use zerocopy::FromBytes;

pub use super::shared::Who;
use super::shared::{self, Plain};

/// State of a thread when it leaves a CPU or is first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// The thread waits to be woken.
    Blocked,
    /// The thread waits for a CPU.
    Runnable,
    /// The thread has a CPU.
    Running,
    /// The thread has ended.
    Dead,
}

/// The thread that a CPU switches to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A recorded thread.
    Recorded(Who),
    /// An unrecorded thread.
    Other,
    /// No thread: the CPU is idle.
    Idle,
}

/// A thread's name and process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Id of the thread's process.
    pub process: u32,
    /// Name of the thread (`comm`).
    pub name: String,
}

/// Kind of an event, with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A thread was found in this state: at the beginning of the recording, and again at the end.
    Seen(Who, Doing, Named),
    /// A thread was created; the second field is its creator, if recorded. It is woken next.
    Made(Who, Option<Who>, Named),
    /// The first thread is about to be woken by the second, which is running.
    Waking(Who, Who),
    /// A thread is runnable, and may have been before.
    Wakeup(Who),
    /// A CPU switches from one thread, which enters the given state, to another. The first is `None` if it is not
    /// recorded.
    Switch(Option<(Who, Doing)>, Next),
    /// A thread is about to end, under this name.
    Exit(Who, Named),
}

/// An event about a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time on the kernel's monotonic clock.
    pub time_ns: u64,
    /// CPU on which it happened.
    pub cpu: u16,
    /// Kind of the event, with its contents.
    pub kind: Kind,
}

impl Event {
    /// Decodes what the program wrote; `None` if that is no known event.
    pub fn decode(bytes: &[u8]) -> Option<Event> {
        let (plain, name) = Plain::read_from_prefix(bytes).ok()?;
        let Plain { time_ns, who, other, cpu, .. } = plain;
        let some = |who: Who| (who.pid != 0).then_some(who);
        let named = || {
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            Named { process: plain.process, name }
        };
        let doing = match plain.doing {
            shared::BLOCKED => Doing::Blocked,
            shared::RUNNABLE => Doing::Runnable,
            shared::RUNNING => Doing::Running,
            shared::DEAD => Doing::Dead,
            _ => return None,
        };
        let kind = match plain.kind {
            shared::SEEN => Kind::Seen(who, doing, named()),
            shared::MADE => Kind::Made(who, some(other), named()),
            shared::WAKING => Kind::Waking(who, other),
            shared::WAKEUP => Kind::Wakeup(who),
            shared::SWITCH => {
                let next = match some(other) {
                    Some(who) => Next::Recorded(who),
                    None if plain.process > 0 => Next::Other,
                    None => Next::Idle,
                };
                Kind::Switch(some(who).map(|who| (who, doing)), next)
            }
            shared::EXIT => Kind::Exit(who, named()),
            _ => return None,
        };
        Some(Event { time_ns, cpu, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u8, doing: u8, name: &[u8]) -> Vec<u8> {
        let mut bytes = 5_u64.to_ne_bytes().to_vec();
        [7_u32, 70, 8, 80].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(3_u16.to_ne_bytes());
        bytes.extend([kind, doing]);
        bytes.extend(6_u32.to_ne_bytes());
        bytes.extend(name);
        bytes
    }

    #[test]
    fn events_are_read_as_they_are_written() {
        let (seven, eight) = (Who { pid: 7, born: 70 }, Who { pid: 8, born: 80 });
        let read = |bytes: &[u8]| Event::decode(bytes).unwrap().kind;
        assert_eq!(read(&bytes(3, 0, b"")), Kind::Waking(seven, eight));
        let switch = Kind::Switch(Some((seven, Doing::Dead)), Next::Recorded(eight));
        assert_eq!(read(&bytes(5, 3, b"")), switch);
        let to_nobody = |process: u8| {
            let mut bytes = bytes(5, 0, b"");
            bytes[16..24].fill(0);
            bytes[28] = process;
            read(&bytes)
        };
        assert_eq!(to_nobody(6), Kind::Switch(Some((seven, Doing::Blocked)), Next::Other));
        assert_eq!(to_nobody(0), Kind::Switch(Some((seven, Doing::Blocked)), Next::Idle));
        let named = Named { process: 6, name: "name".into() };
        assert_eq!(read(&bytes(6, 0, b"name\0rest.......")), Kind::Exit(seven, named));
        let event = Event::decode(&bytes(4, 0, b"")).unwrap();
        assert_eq!((event.time_ns, event.cpu), (5, 3));
    }

    #[test]
    fn malformed_events_decode_to_none() {
        assert_eq!(Event::decode(&bytes(9, 0, b"")), None);
        assert_eq!(Event::decode(&bytes(5, 9, b"")), None);
        assert_eq!(Event::decode(&bytes(5, 0, b"")[..31]), None);
        assert_eq!(Event::decode(b""), None);
    }
}
