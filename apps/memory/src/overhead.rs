//! The memory that a tool takes itself, which is subtracted from its savings.

use std::collections::BTreeSet;
use std::path::Path;

/// Memory of processes without file pages: pages of program files are dropped by the kernel when memory is short. Pages shared
/// by several processes count in proportion.
fn own_bytes(pid: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    parse_rollup(&text)
}

fn parse_rollup(text: &str) -> Option<u64> {
    let kib = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some((kib("Pss_Anon:")? + kib("Pss_Shmem:")?) * 1024)
}

/// Memory of the BPF maps that this process has open: it is the kernel's, and in no process's share.
fn map_bytes() -> u64 {
    let entries = std::fs::read_dir("/proc/self/fdinfo").into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let mut seen = BTreeSet::new();
    texts
        .filter_map(|text| parse_map(&text))
        .filter(|(id, _)| seen.insert(*id))
        .map(|it| it.1)
        .sum()
}

/// Id and size in bytes of a map.
fn parse_map(fdinfo: &str) -> Option<(u64, u64)> {
    let field = |name: &str| -> Option<u64> {
        fdinfo.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    Some((field("map_id:")?, field("memlock:")?))
}

/// Memory that this process took before a tool began.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    own: u64,
    maps: u64,
}

impl Before {
    /// Measures now, after freeing the heap's unused memory: otherwise a tool would get memory left behind by an earlier one
    /// for free.
    pub fn now() -> Before {
        wave_process::heap::release();
        Before { own: own_bytes("self").unwrap_or(0), maps: map_bytes() }
    }

    /// Bytes that a tool takes: the growth of this process, and all of these processes, which belong to the tool.
    pub fn grown(self, processes: &[i32]) -> u64 {
        let now = Before::now();
        let others = processes.iter().filter_map(|pid| own_bytes(&pid.to_string()));
        (now.own + now.maps).saturating_sub(self.own + self.maps) + others.sum::<u64>()
    }
}

/// Bytes of the kernel's objects of this kind in use; 0 if the kernel does not tell.
pub fn slab_bytes(kind: &str) -> u64 {
    let text = std::fs::read_to_string(Path::new("/proc/slabinfo")).unwrap_or_default();
    parse_slab(&text, kind).unwrap_or(0)
}

fn parse_slab(text: &str, kind: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
    let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
    let (_, objects, bytes) = (numbers.next()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(objects * bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_figures_are_parsed() {
        let rollup = "1000-2000 ---p 0 00:00 0 [rollup]\nPss:  90 kB\nPss_Anon:   10 kB\n\
                      Pss_File:  70 kB\nPss_Shmem:   2 kB\n";
        assert_eq!(parse_rollup(rollup), Some(12 << 10));
        let map = "pos:\t0\nmap_type:\t2\nmemlock:\t8192\nmap_id:\t7\n";
        assert_eq!((parse_map(map), parse_map("pos:\t0\n")), (Some((7, 8192)), None));
        let slabs = "# name <active_objs> <num_objs> <objsize>\n\
                     damon_region_x 9 9 9 1 1 : x\ndamon_region  3  40  104 39 1 : tunables\n";
        assert_eq!((parse_slab(slabs, "damon_region"), parse_slab(slabs, "x")), (Some(4160), None));
    }
}
