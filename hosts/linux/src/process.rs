//! Reads processes and their threads from /proc.

use std::io;

/// Identity of a process or thread: its id and start, as ids are reused.
pub(crate) type Lifetime = (i32, u64);

/// Fields of `/proc/ID/stat` of a process or thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) parent: i32,
    flags: u64,
    /// When it started, in ticks since boot. A reused id has another start.
    pub(crate) started: u64,
}

const PF_KTHREAD: u64 = 0x0020_0000;

impl Stat {
    pub(crate) fn read(id: i32) -> Option<Stat> {
        Stat::parse(&text(&format!("/proc/{id}/stat")).ok()?)
    }

    /// Parses a line. The name in it may contain any characters.
    fn parse(line: &str) -> Option<Stat> {
        let (_, after_name) = line.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        Some(Stat {
            parent: fields.get(1)?.parse().ok()?,
            flags: fields.get(6)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    pub(crate) fn is_kernel_thread(self) -> bool {
        self.flags & PF_KTHREAD != 0
    }
}

/// Reads a file below /proc. The names of threads and files in it may be any bytes: the kernel also cuts a thread's name within
/// a character.
pub(crate) fn text(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// The process that a thread belongs to.
pub(crate) fn process_of(tid: i32) -> Option<i32> {
    let text = text(&format!("/proc/{tid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// The ids of all processes.
pub(crate) fn processes() -> impl Iterator<Item = i32> {
    numbers("/proc".to_owned())
}

/// The threads of a process.
pub(crate) fn ids_of(pid: i32) -> impl Iterator<Item = i32> {
    numbers(format!("/proc/{pid}/task"))
}

/// The threads of a process, with their starts.
pub(crate) fn threads_of(pid: i32) -> impl Iterator<Item = (i32, u64)> {
    ids_of(pid).filter_map(|tid| Some((tid, Stat::read(tid)?.started)))
}

fn numbers(folder: String) -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_named_like_stat_fields_is_parsed() {
        let line = "7 (a) 1 (b)) S 1 7 7 0 -1 2129984 100 0 0 0 42 58 0 0 20 0 1 0 1000 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.parent, stat.started), (1, 1000));
        assert!(stat.is_kernel_thread());
        assert_eq!(Stat::parse("7 (a) S 1"), None);
    }

    #[test]
    fn thread_whose_name_is_not_utf8_is_found() {
        let named = || {
            // SAFETY: the name is a string that ends with 0.
            let set = unsafe { libc::prctl(libc::PR_SET_NAME, c"caf\xe9".as_ptr()) };
            assert_eq!(set, 0);
            // SAFETY: takes nothing and touches no memory.
            let tid = unsafe { libc::gettid() };
            (tid, Stat::read(tid), process_of(tid))
        };
        let (_, stat, process) = std::thread::spawn(named).join().unwrap();
        assert!(stat.is_some());
        assert_eq!(process, Some(std::process::id() as i32));
    }

    #[test]
    fn this_process_has_this_thread() {
        let pid = std::process::id() as i32;
        assert_eq!(process_of(pid), Some(pid));
        assert!(threads_of(pid).any(|(tid, _)| tid == pid));
        assert!(processes().any(|other| other == pid));
        assert!(!Stat::read(pid).unwrap().is_kernel_thread());
    }
}
