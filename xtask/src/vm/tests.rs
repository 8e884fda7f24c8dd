//! `cargo xtask vm test`: the tests that need a kernel with sched_ext. To add one, write a function
//! of the form of [`Check`] and put it into [`TESTS`].

use std::process::ExitCode;
use std::time::Instant;

use super::kernel::{self, Kernel};
use super::machine::Wanted;
use super::{Error, session, tools};

/// Boots what it needs; says what was wrong.
type Check = fn(&Kernel) -> Result<(), String>;

/// Every test, by name.
const TESTS: &[(&str, Check)] = &[
    ("sched_ext and exit codes", sched_ext_and_exit_codes),
    ("the kernel patches itself under load", patches_itself),
];

/// Runs every test: a line for each, and at last one with the sums.
pub fn run() -> ExitCode {
    let kernel = match tools::install().and_then(|()| kernel::cached_or_fetched()) {
        Ok(kernel) => kernel,
        Err(error) => return without_a_machine(&error),
    };
    println!("kernel {}, {}", kernel.version, session::accelerator(&kernel).name());
    let mut passed = 0;
    for (name, check) in TESTS {
        let began = Instant::now();
        let result = check(&kernel);
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                passed += 1;
                println!("ok      {name} ({seconds:.1} s)");
            }
            Err(why) => println!("FAILED  {name} ({seconds:.1} s): {why}"),
        }
    }
    let failed = TESTS.len() - passed;
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// On a developer's machine that cannot have one, the tests are left out; where a machine checks
/// for everybody, that would hide that nothing was checked.
fn without_a_machine(error: &Error) -> ExitCode {
    if std::env::var_os("CI").is_some() {
        println!("FAILED  no virtual machine: {error}");
        println!("0 passed, {} failed", TESTS.len());
        return ExitCode::FAILURE;
    }
    println!("skipped: no virtual machine: {error}");
    println!("0 passed, 0 failed");
    ExitCode::SUCCESS
}

/// What a command in the guest wrote, and its exit code.
struct Answer {
    exit_code: u8,
    out: String,
    err: String,
}

/// Runs a line of shell in the guest.
fn in_guest(kernel: &Kernel, line: &str) -> Result<Answer, String> {
    let command = ["sh", "-c", line].map(String::from).to_vec();
    let wanted = Wanted { command, ..Wanted::default() };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = session::run(kernel, &wanted, &mut out, &mut err);
    let exit_code = outcome.map_err(|error| error.to_string())?.exit_code;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Answer { exit_code, out: text(out), err: text(err) })
}

fn expect(answer: &Answer, exit_code: u8, out: &str) -> Result<(), String> {
    if answer.exit_code == exit_code && answer.out == out {
        return Ok(());
    }
    let Answer { exit_code: found, out: wrote, err } = answer;
    Err(format!("exit code {found}, output {wrote:?}, errors {err:?}; not {exit_code}, {out:?}"))
}

fn sched_ext_and_exit_codes(kernel: &Kernel) -> Result<(), String> {
    let state = "cat /sys/kernel/sched_ext/state && exit 0";
    expect(&in_guest(kernel, state)?, 0, "disabled\n")?;
    let no_newline = "echo aside >&2; printf 'no newline'; exit 7";
    let answer = in_guest(kernel, no_newline)?;
    expect(&answer, 7, "no newline")?;
    if answer.err == "aside\n" { Ok(()) } else { Err(format!("errors {:?}", answer.err)) }
}

/// Loading a scheduler patches branches of the kernel that the other CPUs execute at that time. Not
/// every QEMU copes ([`super::machine`]); with one that does not, this ends in a panic.
fn patches_itself(kernel: &Kernel) -> Result<(), String> {
    let line = "for task in 1 2; do while :; do /bin/true; done & done
        for round in $(seq 200); do
            for on in 1 0; do echo $on > /proc/sys/kernel/sched_schedstats || exit 1; done
        done";
    expect(&in_guest(kernel, line)?, 0, "")
}
