//! Which CPUs there are, and where a thread may run.

use std::io;

use crate::memory::check;

/// The CPUs that are online, ascending.
pub fn online() -> io::Result<Vec<usize>> {
    list("online")
}

/// How many CPUs there can be.
pub fn possible() -> io::Result<usize> {
    Ok(list("possible")?.last().map_or(1, |last| last + 1))
}

fn list(name: &str) -> io::Result<Vec<usize>> {
    let path = format!("/sys/devices/system/cpu/{name}");
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    parse(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path}: {text}")))
}

/// A list of CPUs as Linux writes it, `0-3,8`; None if it is no such list.
pub fn parse(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= libc::CPU_SETSIZE as usize {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The CPUs that this thread may use.
pub fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: all-zero is an empty `cpu_set_t`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for writes of its size; 0 is the calling thread.
    check(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) })?;
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: the index is below CPU_SETSIZE.
    Ok(all.filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

/// Lets this thread run on these CPUs only.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    pin_thread(0, cpus)
}

/// Lets the thread of this id run on these CPUs only; 0 is the calling one.
pub fn pin_thread(thread: libc::pid_t, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: all-zero is an empty `cpu_set_t`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: `cpu` is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is valid for reads of its size.
    check(unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &set) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("5"), Some(vec![5]));
        assert_eq!(parse("\n"), Some(vec![]));
        for nonsense in ["a", "3-1", "0-", "0,,1", "0-99999999"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_thread_is_where_it_was_pinned_to() {
        let first = allowed().unwrap()[0];
        assert!(online().unwrap().contains(&first) && possible().unwrap() > first);
        std::thread::spawn(move || {
            pin(&[first]).unwrap();
            assert_eq!(allowed().unwrap(), [first]);
            assert!(pin(&[usize::MAX]).is_err());
        })
        .join()
        .unwrap();
    }
}
