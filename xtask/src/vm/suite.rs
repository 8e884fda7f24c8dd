//! `cargo xtask vm test`: the tests that need a kernel with sched_ext. Add a new test on the default machine to
//! [`commands::CHECKS`]; one on another machine is a function of the type [`Check`], in [`TESTS`].

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use wave_skip::skip;

use super::kernel::{self, Kernel};
use super::machine::{Accelerator, Wanted};
use super::{
    Error, Program, WAVE, built_as_tested, commands, icount, outside, scenarios, session,
    shared_boot, tools,
};

/// A test that boots its own machine; the error says what is wrong.
type Check = fn(&Kernel) -> Result<(), String>;

/// A test program of the kernel host.
const fn of_linux(name: &'static str) -> Program {
    Program { flags: &["--workspace"], package: "wave-linux", kind: "test", name }
}

/// The tests that each have their own machine, by name.
const TESTS: &[(&str, Check)] = &[
    ("sched_ext and exit codes", sched_ext_and_exit_codes),
    ("agents outside the machine schedule programs", outside::schedules),
    ("agents outside the machine come and go", outside::survives),
    ("an agent outside the machine pages out", outside::pages_out),
    ("access bits, advice and swap on this kernel", memory_works),
    (BAKE_OFF, scenarios::bake_off_compares),
    ("scenarios: two-enclaves on the kernel", scenarios::two_enclaves),
    ("a switch costs little more than one that BPF decides", icount::a_switch_is_cheap),
    ("guests of KVM finish, and their cores need no ticks", icount::guests_finish),
    ("an agent shares the only CPU", agent_shares_the_only_cpu),
];

/// Name of the longest of them.
const BAKE_OFF: &str = "scenarios: memory-bakeoff compares memory's tools";

/// Prefix of the kernel host's tests that need a machine with eight CPUs; the others need four.
const ON_EIGHT: &str = "on_eight_cpus";
/// Time limit for one of them without output.
const KERNEL_HOST: Duration = Duration::from_secs(600);

/// Runs all tests, or those whose names contain `part`. Prints a line for each, and the totals at the end.
pub fn run(part: Option<&str>) -> ExitCode {
    let kernel = match self::kernel() {
        Ok(kernel) => kernel,
        Err(error) => return without_a_machine(&error),
    };
    println!("kernel {}, {}", kernel.version, session::accelerator(&kernel).name());
    let is_wanted = |name: &str| part.is_none_or(|part| name.contains(part));
    let checks: Vec<_> = TESTS.iter().filter(|(name, _)| is_wanted(name)).collect();
    let shared: Vec<_> = commands::CHECKS.iter().filter(|check| is_wanted(check.name)).collect();
    // If `part` matches a test above, only those are wanted.
    let machines: Vec<(u32, Vec<&str>)> = match part {
        Some(_) if !(checks.is_empty() && shared.is_empty()) => Vec::new(),
        Some(part) if part.starts_with(ON_EIGHT) => vec![(8, vec![part])],
        Some(part) => vec![(4, vec!["--skip", ON_EIGHT, part])],
        None => vec![(4, vec!["--skip", ON_EIGHT]), (8, vec![ON_EIGHT])],
    };
    let hosts = machines.iter().map(Job::KernelHost);
    let shared = (!shared.is_empty()).then_some(Job::SharedBoot(shared));
    let mut jobs: Vec<_> = hosts.chain(shared).chain(checks.into_iter().map(Job::Check)).collect();
    jobs.sort_by_key(Job::rank);
    // An emulated machine uses one host CPU however many virtual CPUs it has, so running two machines side by side halves the
    // time.
    let lanes = match session::accelerator(&kernel) {
        Accelerator::Tcg => 2,
        Accelerator::Kvm => 1,
    };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut sums = Sums::default();
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            sums = sums.plus(job.run(&kernel));
        }
        sums
    };
    let sums = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(work)).collect();
        // The panic's message has been printed.
        let ended =
            lanes.into_iter().map(|lane| lane.join().unwrap_or(Sums { passed: 0, failed: 1 }));
        ended.fold(Sums::default(), Sums::plus)
    });
    let Sums { passed, failed } = sums;
    println!("{passed} passed, {failed} failed");
    if let (Some(part), 0) = (part, passed + failed) {
        println!("no test has {part:?} in its name");
        return ExitCode::from(2);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The machine's kernel; also installs the programs that tests need.
pub fn kernel() -> Result<Kernel, Error> {
    tools::install()?;
    tools::install_workloads()?;
    kernel::cached_or_fetched()
}

/// Number of tests that passed, and that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    passed: usize,
    failed: usize,
}

impl Sums {
    fn plus(self, more: Sums) -> Sums {
        Sums { passed: self.passed + more.passed, failed: self.failed + more.failed }
    }
}

/// A job for one machine.
enum Job<'a> {
    /// The kernel host's tests with these arguments, on this number of CPUs.
    KernelHost(&'a (u32, Vec<&'a str>)),
    Check(&'a (&'static str, Check)),
    SharedBoot(Vec<&'static shared_boot::Check>),
}

impl Job<'_> {
    /// The longest jobs first: the last to end decides when all have ended.
    fn rank(&self) -> u8 {
        match self {
            Job::KernelHost((4, _)) => 0,
            Job::Check((BAKE_OFF, _)) => 1,
            Job::KernelHost(_) | Job::SharedBoot(_) => 2,
            Job::Check(_) => 3,
        }
    }

    fn run(&self, kernel: &Kernel) -> Sums {
        let began = Instant::now();
        let (name, result) = match self {
            Job::SharedBoot(checks) => {
                let mut sums = Sums::default();
                shared_boot::run(kernel, checks, |name, seconds, result| {
                    let result = result.map(|()| Sums { passed: 1, failed: 0 });
                    sums = sums.plus(told(name, seconds, result));
                });
                return sums;
            }
            Job::KernelHost((cpus, which)) => {
                let program = built_as_tested(of_linux("vm"));
                let result =
                    program.and_then(|program| kernel_host(kernel, &program, *cpus, which));
                (format!("the kernel host's tests, on {cpus} CPUs"), result)
            }
            Job::Check((name, check)) => {
                let result = check(kernel).map(|()| Sums { passed: 1, failed: 0 });
                ((*name).to_owned(), result)
            }
        };
        told(&name, began.elapsed().as_secs_f64(), result)
    }
}

/// Prints a line about how a test ended.
fn told(name: &str, seconds: f64, result: Result<Sums, String>) -> Sums {
    result.map_or_else(
        |why| {
            println!("FAILED  {name} ({seconds:.1} s): {why}");
            Sums { passed: 0, failed: 1 }
        },
        |sums| {
            let word = if sums.failed == 0 { "ok    " } else { "FAILED" };
            println!("{word}  {name} ({seconds:.1} s)");
            sums
        },
    )
}

/// On a developer's machine that cannot run a virtual one, the tests are skipped. In CI they fail, because a skip would hide
/// that nothing was checked.
fn without_a_machine(error: &Error) -> ExitCode {
    if std::env::var_os("CI").is_some() {
        println!("FAILED  no virtual machine: {error}");
        println!("0 passed, {} failed", TESTS.len() + commands::CHECKS.len());
        return ExitCode::FAILURE;
    }
    skip(format!("no virtual machine: {error}"));
    println!("0 passed, 0 failed");
    ExitCode::SUCCESS
}

/// Runs the tests of hosts/linux that need sched_ext, in one machine, and shows their output as it comes.
fn kernel_host(kernel: &Kernel, program: &str, cpus: u32, which: &[&str]) -> Result<Sums, String> {
    println!("the kernel host's tests, on {cpus} CPUs:");
    let fixed = [program, "--test-threads=1", "--show-output"];
    let command = fixed.iter().chain(which).copied().map(String::from).collect();
    let wanted = Wanted { cpus, silence_max: KERNEL_HOST, command, ..Wanted::default() };
    let mut out = Kept { text: Vec::new(), passed_on: 0, also: std::io::stdout() };
    let outcome = session::run(kernel, &wanted, &mut out, &mut std::io::stderr());
    // If a test hung, its name is in the last, unterminated line.
    let _ = out.also.write_all(&out.text[out.passed_on..]);
    let exit_code = outcome.map_err(|error| error.to_string())?.exit_code;
    let text = String::from_utf8_lossy(&out.text);
    left_out_in_guest(&text);
    sums(&text).ok_or_else(|| format!("no result; exit code {exit_code}"))
}

/// Reports the tests that the guest skipped: in the guest there is no list to write them to.
fn left_out_in_guest(text: &str) {
    text.lines().filter_map(|line| line.strip_prefix("skipped: ")).for_each(skip);
}

/// Passes output on in whole lines, because other threads write as well, and keeps a copy.
struct Kept<W> {
    text: Vec<u8>,
    passed_on: usize,
    also: W,
}

impl<W: Write> Write for Kept<W> {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        self.text.extend_from_slice(piece);
        let lines = &self.text[self.passed_on..];
        if let Some(last) = lines.iter().rposition(|letter| *letter == b'\n') {
            // If nobody reads the output, the result still counts.
            let _ = self.also.write_all(&lines[..=last]);
            self.passed_on += last + 1;
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let _ = self.also.flush();
        Ok(())
    }
}

/// Parses a line `test result: ok. 8 passed; 1 failed; ...`.
fn sums(text: &str) -> Option<Sums> {
    let line = text.lines().rev().find(|line| line.starts_with("test result: "))?;
    let count = |what: &str| {
        let before = line.split(what).next()?;
        before.rsplit(' ').next()?.parse().ok()
    };
    Some(Sums { passed: count(" passed")?, failed: count(" failed")? })
}

/// A guest command's output and exit code.
#[derive(Debug)]
pub struct Answer {
    pub exit_code: u8,
    pub out: String,
    pub err: String,
}

/// Runs a line of shell in the guest.
pub fn in_guest(kernel: &Kernel, line: &str) -> Result<Answer, String> {
    let command = ["sh", "-c", line].map(String::from).to_vec();
    in_machine(kernel, &Wanted { command, ..Wanted::default() })
}

/// Runs a command in a guest.
pub fn in_machine(kernel: &Kernel, wanted: &Wanted) -> Result<Answer, String> {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = session::run(kernel, wanted, &mut out, &mut err);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (out, err) = (text(out), text(err));
    match outcome {
        Ok(outcome) => Ok(Answer { exit_code: outcome.exit_code, out, err }),
        Err(error) => Err(format!("{error}\nwhat the command wrote:\n{out}{err}")),
    }
}

/// Compares an answer with the expected one.
pub fn expect(answer: &Answer, exit_code: u8, out: &str) -> Result<(), String> {
    if answer.exit_code == exit_code && answer.out == out {
        return Ok(());
    }
    let Answer { exit_code: found, out: wrote, err } = answer;
    Err(format!("exit code {found}, output {wrote:?}, errors {err:?}; not {exit_code}, {out:?}"))
}

fn sched_ext_and_exit_codes(kernel: &Kernel) -> Result<(), String> {
    let line = "cat /sys/kernel/sched_ext/state; echo aside >&2; printf 'no newline'; exit 7";
    let answer = in_guest(kernel, line)?;
    expect(&answer, 7, "disabled\nno newline")?;
    if answer.err == "aside\n" { Ok(()) } else { Err(format!("errors {:?}", answer.err)) }
}

/// With no CPU left for the agent, the agent, whose class comes first, must not keep the threads from running.
fn agent_shares_the_only_cpu(kernel: &Kernel) -> Result<(), String> {
    let wave = built_as_tested(WAVE)?;
    let line = "for round in 1 2 3 4; do true | cat; done";
    let command =
        [&wave, "run", "--host", "linux", "--patience", "5000", "--json", "--", "sh", "-c", line];
    let command = command.map(String::from).to_vec();
    has_decided(&in_machine(kernel, &Wanted { cpus: 1, command, ..Wanted::default() })?)
}

/// The result of a run in which the agent decided, and was not revoked.
pub fn has_decided(answer: &Answer) -> Result<(), String> {
    let result: Value =
        serde_json::from_str(&answer.out).map_err(|error| format!("{error}: {answer:?}"))?;
    let decided = result["outcomes"]["COMPLETE"].as_u64().unwrap_or(0);
    if answer.exit_code == 0 && decided > 8 && result["agents_lost"] == 0 {
        return Ok(());
    }
    Err(format!("{answer:?}"))
}

/// The disk for the memory host's own tests, which elsewhere run on the machine's kernel. Swap leaves 1 GiB of a disk free, and
/// ext4 takes some for itself.
const SWAP_DISK_MIB: u32 = 2048;

fn memory_works(kernel: &Kernel) -> Result<(), String> {
    let program = built_as_tested(of_linux("memory"))?;
    let command = [&program, "--test-threads=1", "--show-output"].map(String::from).to_vec();
    let modules = vec!["zram".to_owned()];
    let wanted = Wanted { command, modules, disk_mib: SWAP_DISK_MIB, ..Wanted::default() };
    let answer = in_machine(kernel, &wanted)?;
    left_out_in_guest(&answer.out);
    match sums(&answer.out) {
        Some(Sums { passed: 1.., failed: 0 }) if answer.exit_code == 0 => Ok(()),
        _ => Err(format!("exit code {}: {}{}", answer.exit_code, answer.out, answer.err)),
    }
}

#[cfg(test)]
mod of_results {
    use super::{Sums, sums};

    #[test]
    fn sums_of_a_test_program() {
        let text =
            "test a ... ok\n\ntest result: FAILED. 10 passed; 2 failed; 0 ignored; finished\n";
        assert_eq!(sums(text), Some(Sums { passed: 10, failed: 2 }));
        assert_eq!(sums("Kernel panic"), None);
    }
}
