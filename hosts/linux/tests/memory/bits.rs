//! Exactly the accessed pages are found.

use std::collections::HashSet;
use std::process::Command;

use wave_linux::memory::{
    AccessBits, Areas, Backend, BitsError, Kind, Process, STRIP_BYTES, Strip,
};

use wave_skip::skip;

use crate::target::{MIB, PAGE, Target, is_in, is_root, share_a_cpu, wait_for};

/// The backends that work on this machine; reports why others do not. All must work unless there is a reason not to.
fn backends() -> Vec<AccessBits> {
    share_a_cpu();
    let mut works = Vec::new();
    for backend in Backend::ALL {
        match AccessBits::with(backend) {
            Ok(bits) => works.push(bits),
            Err(error) => {
                skip(&error);
                let btf = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
                let expected = cfg!(target_arch = "x86_64") && is_root() && btf;
                assert!(!expected || !is_expected(backend), "{error}");
            }
        }
    }
    works
}

fn is_expected(backend: Backend) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let from = match backend {
        Backend::Walk => (6, 12),
        Backend::Iterator => (6, 1),
    };
    version >= from && !lockdown.contains("[confidentiality]")
}

/// Young pages of a reading, and present ones, by their number in the strips.
fn pages(strips: &[Strip]) -> (Vec<u64>, Vec<u64>) {
    let ones = |word: &dyn Fn(&Strip) -> [u64; 64]| {
        let words = strips.iter().flat_map(word).enumerate();
        let bits = words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u64 * 64 + bit)
        });
        bits.collect::<Vec<u64>>()
    };
    (ones(&|strip| strip.young), ones(&|strip| strip.present))
}

#[test]
fn every_touched_page_is_found_and_no_other() {
    let areas = Areas::open();
    for mut bits in backends() {
        let mut target = Target::start();
        let Some(process) = target.open() else { return };
        let bytes = 5 * STRIP_BYTES;
        let start = target.map("anonymous", bytes, STRIP_BYTES);
        // Holes of two page tables, of whole batches, of one page, and of half a strip.
        let holes =
            [(5 * MIB, 3 * MIB), (20 * MIB, MIB / 4), (21 * MIB, PAGE), (40 * MIB, 8 * MIB)];
        for (at, bytes) in holes {
            target.unmap(start + at, bytes);
        }
        let mut parts = Vec::new();
        let mut from = 0;
        for (at, bytes) in holes {
            parts.push((from, at));
            from = at + bytes;
        }
        parts.push((from, bytes));
        let in_pattern = |pattern: &dyn Fn(u64) -> bool| -> Vec<u64> {
            let all = parts.iter().flat_map(|(from, to)| {
                let pages = (0..(to - from) / PAGE).filter(|page| pattern(*page));
                pages.map(move |page| from / PAGE + page)
            });
            all.collect()
        };
        let first = in_pattern(&|page| is_in(1, page));
        let second = in_pattern(&|page| is_in(2, page));
        let any = in_pattern(&|page| is_in(1, page) || is_in(2, page));
        assert!(first.len() + second.len() > 10_000 && any.len() > first.len() + 1_000);
        let map = areas.map(&process).unwrap();
        let addresses: Vec<u64> = (0..5).map(|at| start + at * STRIP_BYTES).collect();
        let mut strips = Vec::new();
        let mut read = |bits: &mut AccessBits| {
            bits.read(&process, map.space, &addresses, &mut strips).unwrap();
            assert!(strips.iter().all(|strip| strip.huge == 0));
            pages(&strips)
        };
        let whole: Vec<_> = parts.iter().map(|(from, to)| start + from..start + to).collect();
        let clear = |bits: &mut AccessBits| {
            let cleared = bits.clear(&process, &whole).unwrap();
            assert_eq!(cleared.bytes, parts.iter().map(|(from, to)| to - from).sum::<u64>());
            assert!(cleared.refused.is_none() && cleared.holes == 0, "{cleared:?}");
        };

        exactly(&first, || {
            for (from, to) in &parts {
                target.write(start + from, to - from, 1);
                // The kernel maps its shared zero page for a page that was never written.
                target.read(start + from, to - from, 0);
            }
            let (young, present) = read(&mut bits);
            assert_eq!(present, first);
            young
        });
        clear(&mut bits);
        assert_eq!(read(&mut bits), (Vec::new(), first.clone()), "{}", bits.backend());
        exactly(&second, || {
            clear(&mut bits);
            for (from, to) in &parts {
                // Some of these pages are new.
                target.write(start + from, to - from, 2);
            }
            let (young, present) = read(&mut bits);
            assert_eq!(present, any);
            young
        });
        let touched = first.len() + second.len();
        println!("{}: exactly the {touched} touched pages were found", bits.backend());
    }
}

/// Checks that `young` finds exactly the expected pages. The kernel clears bits as well: kswapd ages anonymous pages while
/// there is swap (the allocation of a huge page wakes it), and DAMON, where it runs, clears bits of pages that it samples. So
/// any number of bits may be missing in some tries, but not in all, and there may never be one too many.
fn exactly(expected: &[u64], mut young: impl FnMut() -> Vec<u64>) {
    const TRIES: usize = 200;
    let known: HashSet<&u64> = expected.iter().collect();
    let mut missing = Vec::new();
    for _ in 0..TRIES {
        let found = young();
        let strange: Vec<_> = found.iter().filter(|page| !known.contains(page)).collect();
        assert!(strange.is_empty(), "pages that were never touched: {strange:?}");
        if found.len() == expected.len() {
            if !missing.is_empty() {
                println!("bits missing in earlier tries, of {}: {missing:?}", expected.len());
            }
            return;
        }
        missing.push(expected.len() - found.len());
    }
    panic!("bits were missing in every try: {missing:?} of {}", expected.len());
}

#[test]
fn huge_pages_are_seen_and_kept_whole() {
    for mut bits in backends() {
        let mut target = Target::start();
        let Some(process) = target.open() else { return };
        let start = target.map("huge", STRIP_BYTES, STRIP_BYTES);
        target.write(start, STRIP_BYTES, 0);
        let map = Areas::open().map(&process).unwrap();
        let mut strips = Vec::new();
        let mut read = |bits: &mut AccessBits| {
            bits.read(&process, map.space, &[start], &mut strips).unwrap();
            strips[0]
        };
        let strip = read(&mut bits);
        assert_eq!(strip.present, [u64::MAX; 64]);
        if strip.huge != 0xff {
            skip("the kernel gives no huge pages");
            return;
        }
        // Units whose words are all ones or all zero.
        let young = |strip: Strip| {
            assert_eq!((strip.present, strip.huge), ([u64::MAX; 64], 0xff));
            let units = strip.young.as_chunks::<8>().0.iter().zip(0..);
            let whole = units.inspect(|(words, _)| assert!([[0; 8], [!0; 8]].contains(words)));
            whole.filter(|(words, _)| words[0] != 0).map(|(_, unit)| unit).collect::<Vec<u64>>()
        };
        let whole = start..start + STRIP_BYTES;
        let two = start + 2 * 2 * MIB..start + 4 * 2 * MIB;
        exactly(&[0, 1, 4, 5, 6, 7], || {
            target.read(start, STRIP_BYTES, 0);
            bits.clear(&process, std::slice::from_ref(&two)).unwrap();
            young(read(&mut bits))
        });
        bits.clear(&process, std::slice::from_ref(&whole)).unwrap();
        assert!(young(read(&mut bits)).is_empty());
        // Touching one page is enough.
        exactly(&[5], || {
            target.read(start + 5 * 2 * MIB + 77 * PAGE, PAGE, 0);
            young(read(&mut bits))
        });
        target.is_intact(start, STRIP_BYTES);
    }
}

/// Whether reading fails with `Changed`, and gives no strips.
fn is_changed(bits: &mut AccessBits, process: &Process, space: u64, at: u64) -> bool {
    let mut strips = vec![Strip::EMPTY; 3];
    match bits.read(process, space, &[at], &mut strips) {
        Err(BitsError::Changed) => strips.is_empty(),
        Ok(()) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn exec_and_exit_of_the_process_are_noticed() {
    let areas = Areas::open();
    for mut bits in backends() {
        let mut target = Target::start();
        let Some(process) = target.open() else { return };
        let start = target.map("anonymous", STRIP_BYTES, STRIP_BYTES);
        let space = areas.map(&process).unwrap().space;
        assert!(!is_changed(&mut bits, &process, space, start));
        assert!(is_changed(&mut bits, &process, space + 1, start));
        let before = space;
        let space = target.execute_another(&areas, &process, before);
        assert!(is_changed(&mut bits, &process, before, start));
        assert!(!is_changed(&mut bits, &process, space, start));
        target.child.kill().unwrap();
        wait_for("its end", || !process.is_alive());
        // Before the child is waited for, and afterwards, when its id may be reused.
        assert!(is_changed(&mut bits, &process, space, start));
        target.child.wait().unwrap();
        assert!(is_changed(&mut bits, &process, space, start));
        let range = start..start + STRIP_BYTES;
        let cleared = bits.clear(&process, std::slice::from_ref(&range));
        assert!(cleared.unwrap_err().to_string().contains("has ended"));
    }
}

/// A process that keeps executing programs while it is read: each reading is of the named address space, or fails.
#[test]
fn reading_during_repeated_exec_succeeds_or_is_refused() {
    let areas = Areas::open();
    for mut bits in backends() {
        let script = "[ $1 -gt 0 ] && exec sh -c \"$0\" \"$0\" $(($1 - 1)); exec sleep 1000";
        let mut child = Command::new("sh").args(["-c", script, script, "300"]).spawn().unwrap();
        let process = Process::open(child.id() as i32);
        let (mut read, mut changed, mut strips) = (0, 0, Vec::new());
        if let Ok(process) = &process {
            let name = format!("/proc/{}/comm", process.pid());
            // Two refusals are enough. Natively about one exec in thirty causes one; all 300 take minutes in an emulated guest.
            while (changed < 2 || read == 0) && std::fs::read_to_string(&name).unwrap() != "sleep\n"
            {
                let Ok(map) = areas.map(process) else { continue };
                let movable = map.areas.iter().filter(|area| area.kind == Kind::Movable);
                let address = |start: u64| start - start % STRIP_BYTES;
                let mut at: Vec<u64> = movable.map(|area| address(area.start)).collect();
                at.dedup();
                match bits.read(process, map.space, &at, &mut strips) {
                    Ok(()) => read += 1,
                    Err(BitsError::Changed) => changed += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        println!("{}: {read} readings, {changed} refused", bits.backend());
        assert!(process.is_err() || read > 0);
    }
}
