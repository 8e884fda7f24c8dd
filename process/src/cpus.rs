//! The CPUs of this machine, and those on which a thread may run.

use std::io;
use std::ops::Deref;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// The CPUs that are online, ascending.
pub fn online() -> io::Result<Vec<usize>> {
    list("online")
}

/// The number of possible CPUs.
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

/// Parses a list of CPUs as Linux writes it, such as `0-3,8`; `None` if the text is not such a list.
pub fn parse(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// One or more CPUs, as users write them: numbers and ranges, such as `2-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<usize>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Cpus, String> {
        match parse(text) {
            Some(cpus) if !cpus.is_empty() => Ok(Cpus(cpus)),
            _ => Err(format!(
                "`{text}` is not a list of CPUs: write numbers and ranges, such as 2-3,8"
            )),
        }
    }
}

impl Deref for Cpus {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

/// The CPUs that this thread may run on, ascending. Before it is pinned, these are the CPUs that the process was given at its start.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// The first two CPUs that this process may use.
///
/// # Errors
/// There is only one.
pub fn two() -> Result<[usize; 2], String> {
    match allowed().map_err(|error| error.to_string())?[..] {
        [first, second, ..] => Ok([first, second]),
        _ => Err("two CPUs are needed, but this process may use only one: see `taskset -pc $$`"
            .to_owned()),
    }
}

/// Lets this thread, and those that it starts from now on, run on these CPUs only. They need not be among the CPUs that it may run on
/// now. On an error its CPUs do not change.
///
/// # Errors
/// The list is empty. A CPU does not exist, or is denied to this process by the limit of a container or service: the message says how
/// to start the process with it.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let invalid = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if cpus.is_empty() {
        return invalid("no CPU was given to pin to".to_owned());
    }
    let before = sched_getaffinity(None).map_err(|error| refused_by_kernel(cpus, error))?;
    // Linux ignores CPUs that may not be used, and refuses only if none remains.
    let refused = match pin_thread(0, cpus) {
        Ok(()) => {
            let allowed = allowed()?;
            !cpus.iter().all(|cpu| allowed.contains(cpu))
        }
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => true,
        Err(error) => return Err(refused_by_kernel(cpus, error)),
    };
    if !refused {
        return Ok(());
    }
    let allowed = widest();
    sched_setaffinity(None, &before).map_err(|error| refused_by_kernel(cpus, error))?;
    let allowed = allowed?;
    let cpu = cpus.iter().find(|cpu| !allowed.contains(cpu)).unwrap_or(&cpus[0]);
    let allowed = ranges(&allowed);
    invalid(format!(
        "CPU {cpu} is not among the CPUs this process may use ({allowed}): choose from those, or if the machine has it, start the \
         process with: systemd-run --scope -p AllowedCPUs={allowed},{cpu} <command>"
    ))
}

fn refused_by_kernel(cpus: &[usize], error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(
        error.kind(),
        format!("the kernel refused to pin a thread to CPUs {}: {error}", ranges(cpus)),
    )
}

/// Lets the thread of this id run on those of these CPUs that it may use; 0 is the calling thread.
///
/// # Errors
/// The thread may use none of these CPUs, or belongs to another user.
pub fn pin_thread(thread: i32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL.into());
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(Pid::from_raw(thread), &set)?)
}

/// All CPUs that this thread could be pinned to. Also lets it run on any of them.
fn widest() -> io::Result<Vec<usize>> {
    let every: Vec<usize> = (0..CpuSet::MAX_CPU).collect();
    pin_thread(0, &every)?;
    allowed()
}

/// Ascending numbers as Linux writes them: `0-3,8`.
fn ranges(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// How far two CPUs are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// They share their last-level cache.
    Near,
    /// The two CPUs share no cache.
    Far,
    /// They are hardware threads of one core; or the system does not tell; or it is a virtual machine, whose CPUs may move.
    Other,
}

impl Distance {
    /// `near`, `far` or `other`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Other => "other",
        }
    }
}

/// How far these two CPUs are from each other, as the system reports it.
pub fn distance(one: usize, other: usize) -> Distance {
    let siblings = list(&format!("cpu{one}/topology/thread_siblings_list")).ok();
    // Caches are numbered from the core outwards.
    let caches =
        (0..).map_while(|index| list(&format!("cpu{one}/cache/index{index}/shared_cpu_list")).ok());
    distance_by(other, siblings, caches.last(), is_virtual())
}

fn distance_by(
    other: usize,
    siblings: Option<Vec<usize>>,
    last_level: Option<Vec<usize>>,
    is_virtual: bool,
) -> Distance {
    match (siblings, last_level) {
        _ if is_virtual => Distance::Other,
        (Some(siblings), _) if siblings.contains(&other) => Distance::Other,
        (Some(_), Some(sharing)) if sharing.contains(&other) => Distance::Near,
        (Some(_), Some(_)) => Distance::Far,
        _ => Distance::Other,
    }
}

fn is_virtual() -> bool {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // On other architectures the system does not tell whether it is a guest, so its reports of caches are not certain.
    let is_guest = !cfg!(target_arch = "x86_64")
        || about.lines().any(|line| {
            line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor")
        });
    is_guest || std::path::Path::new("/sys/hypervisor/type").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_only_its_cpu() {
        let cpu = allowed().unwrap()[0];
        std::thread::spawn(move || {
            pin(&[cpu]).unwrap();
            assert_eq!(allowed().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_pinned_thread_can_be_pinned_elsewhere() {
        let cpus = allowed().unwrap();
        let all = cpus.clone();
        std::thread::spawn(move || {
            for &cpu in &cpus {
                pin(&[cpu]).unwrap();
            }
            pin(&cpus).unwrap();
            assert_eq!(allowed().unwrap(), all);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn pinning_to_an_unavailable_cpu_changes_nothing_and_suggests_a_remedy() {
        let before = allowed().unwrap();
        // A CPU too large for a set, one that few machines have, and that one beside an available CPU.
        for cpus in [&[1_000_000][..], &[1_023], &[before[0], 1_023]] {
            let error = pin(cpus).unwrap_err().to_string();
            let missing = cpus.last().unwrap();
            assert!(error.starts_with(&format!("CPU {missing} ")), "{error}");
            assert!(error.contains("AllowedCPUs="), "{error}");
            assert_eq!(allowed().unwrap(), before);
        }
        assert!(pin(&[]).unwrap_err().to_string().contains("no CPU"));
    }

    #[test]
    fn cpus_are_written_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn cpus_are_near_by_the_cache_that_they_share() {
        let distance = |siblings: &[usize], sharing: &[usize], is_virtual| {
            distance_by(1, Some(siblings.to_vec()), Some(sharing.to_vec()), is_virtual)
        };
        assert_eq!(distance(&[0], &[0, 1], false), Distance::Near);
        assert_eq!(distance(&[0, 8], &[0, 8], false), Distance::Far);
        assert_eq!(distance(&[0, 1], &[0, 1], false), Distance::Other);
        assert_eq!(distance(&[0], &[0, 1], true), Distance::Other);
        assert_eq!(distance_by(1, None, Some(vec![0, 1]), false), Distance::Other);
        assert_eq!(distance_by(1, Some(vec![0]), None, false), Distance::Other);
    }

    #[test]
    fn cpu_lists_are_parsed_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("5"), Some(vec![5]));
        assert_eq!(parse("\n"), Some(vec![]));
        for nonsense in ["a", "3-1", "0-", "0,,1", "0-99999999"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn an_allowed_cpu_is_online() {
        let first = allowed().unwrap()[0];
        assert!(online().unwrap().contains(&first) && possible().unwrap() > first);
        assert!(pin_thread(0, &[usize::MAX]).is_err());
    }
}
