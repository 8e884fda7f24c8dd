//! The workspace's test programs, several at a time: most of their time they wait for timers and for other processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cargo::{cargo, messages, name_of_package, target_folder, workspace};

/// The programs that take longest, which start first. Package and program.
const LONGEST: &[(&str, &str)] = &[
    ("wave", "memory"),
    ("wave", "tcp_programs"),
    ("wave-sim", "fit"),
    ("wave-experiments", "wave_experiments"),
    ("wave-paper", "wave_paper"),
    ("wave-grpc", "front"),
    ("wave-user", "crash"),
    ("wave-tcp", "streams"),
];

/// Programs that run at the same time.
const AT_ONCE: usize = 2;

/// A test program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    package: String,
    /// Name of the test or of the crate.
    name: String,
    /// Where it runs: the package's folder.
    folder: PathBuf,
    path: PathBuf,
}

/// How a program ended.
#[derive(Debug)]
struct Ended {
    program: Program,
    passed: bool,
    time: Duration,
}

/// Runs these programs, then the tests in documentation. One that fails stops no other.
///
/// # Errors
/// Tests failed; the error names their programs.
pub fn run(programs: Vec<Program>) -> Result<(), String> {
    let programs = ordered(programs)?;
    let logs = target_folder().join("suite");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let count = programs.len();
    println!(
        "test: {count} programs, {AT_ONCE} at a time; the output of each is printed when it ends, and is in {}",
        logs.display()
    );
    let (waiting, ended) = (Mutex::new(programs.into_iter()), Mutex::new(Vec::new()));
    let next = || lock(&waiting).next();
    let worker = || {
        while let Some(program) = next() {
            // The file name has cargo's hash: programs of one name get separate logs.
            let file = program.path.file_name().unwrap_or_default();
            let log = logs.join(file).with_extension("log");
            println!("test: {} {} has started", program.package, program.name);
            let began = Instant::now();
            let passed = run_one(&program, &log);
            let time = began.elapsed();
            let mut ended = lock(&ended);
            print(&program, &log, &passed, time, ended.len() + 1, count);
            ended.push(Ended { program, passed: passed.is_ok_and(|passed| passed), time });
        }
    };
    let began = Instant::now();
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(worker))));
    let ended = ended.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("{}", summary(&ended, began.elapsed()));
    let mut failed: Vec<String> = ended
        .iter()
        .filter(|ended| !ended.passed)
        .map(|Ended { program: Program { package, name, .. }, .. }| format!("{package} {name}"))
        .collect();
    println!("test: tests in documentation");
    let mut documented = cargo();
    documented.args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"]);
    let documented = documented.current_dir(workspace()).stdin(Stdio::null()).status();
    let documented = documented.map_err(|error| format!("cargo: {error}"))?;
    if !documented.success() {
        failed.push("tests in documentation".to_owned());
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// A panic while the lock was held left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Builds the test programs of the workspace, with cargo's progress on standard error.
///
/// # Errors
/// The build failed.
pub fn programs() -> Result<Vec<Program>, String> {
    let mut cargo = cargo();
    cargo.args(["test", "--workspace", "--locked", "--no-run"]).current_dir(workspace());
    Ok(messages(cargo.stdin(Stdio::null()))?.iter().filter_map(program).collect())
}

/// The test program that a message of cargo's is about, if it is about one.
fn program(message: &Value) -> Option<Program> {
    if message["profile"]["test"] != true {
        return None;
    }
    let package = name_of_package(message["package_id"].as_str()?)?.to_owned();
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let name = message["target"]["name"].as_str()?.to_owned();
    Some(Program { package, name, folder, path: message["executable"].as_str()?.into() })
}

/// The longest first, the others by name. The error names one of [`LONGEST`] that is not among them.
fn ordered(mut programs: Vec<Program>) -> Result<Vec<Program>, String> {
    let is_it = |program: &Program, (package, name): &(&str, &str)| {
        program.package == *package && program.name == *name
    };
    let is_there = |longest: &&(&str, &str)| programs.iter().any(|program| is_it(program, longest));
    if let Some((package, name)) = LONGEST.iter().find(|longest| !is_there(longest)) {
        return Err(format!(
            "LONGEST in xtask/src/suite.rs names {package} {name}, which was not built"
        ));
    }
    let rank = |program: &Program| LONGEST.iter().position(|longest| is_it(program, longest));
    programs.sort_by_key(|program| {
        (rank(program).unwrap_or(LONGEST.len()), program.package.clone(), program.name.clone())
    });
    Ok(programs)
}

/// Runs a program as cargo does, with its output in a file. Returns whether its tests passed.
fn run_one(program: &Program, log: &Path) -> std::io::Result<bool> {
    let file = File::create(log)?;
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).stdin(Stdio::null());
    command.env("CARGO_PKG_NAME", &program.package).env("CARGO_MANIFEST_DIR", &program.folder);
    command.stdout(file.try_clone()?).stderr(file);
    Ok(command.status()?.success())
}

fn print(
    program: &Program,
    log: &Path,
    passed: &std::io::Result<bool>,
    time: Duration,
    number: usize,
    of: usize,
) {
    let Program { package, name, .. } = program;
    let text = std::fs::read(log).unwrap_or_default();
    let word = match passed {
        Ok(true) => "ok".to_owned(),
        Ok(false) => "FAILED".to_owned(),
        Err(error) => format!("FAILED: {error}"),
    };
    println!("{}", String::from_utf8_lossy(&text).trim_end());
    println!("test: {number} of {of}: {package} {name}: {word} ({:.1} s)\n", time.as_secs_f64());
}

/// One line about all programs, with those that took longest.
fn summary(ended: &[Ended], time: Duration) -> String {
    const SHOWN: usize = 5;
    let mut longest: Vec<&Ended> = ended.iter().collect();
    longest.sort_by_key(|ended| std::cmp::Reverse(ended.time));
    let longest = longest.iter().take(SHOWN).map(|Ended { program, time, .. }| {
        format!("{} {} {:.0} s", program.package, program.name, time.as_secs_f64())
    });
    let passed = ended.iter().filter(|ended| ended.passed).count();
    format!(
        "test: {passed} programs passed, {} failed, in {:.0} s; the longest: {}",
        ended.len() - passed,
        time.as_secs_f64(),
        longest.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn built(package: &str, name: &str) -> Program {
        let message = json!({
            "package_id": format!("path+file:///w/{package}#{package}@0.1.0"),
            "manifest_path": format!("/w/{package}/Cargo.toml"),
            "target": { "name": name },
            "profile": { "test": true },
            "executable": format!("/t/{name}-1"),
        });
        program(&message).unwrap()
    }

    #[test]
    fn examples_and_libraries_are_no_test_programs() {
        let example = json!({ "profile": { "test": false }, "executable": "/t/example" });
        let library = json!({ "profile": { "test": true }, "executable": null });
        assert_eq!([program(&example), program(&library)], [None, None]);
        let program = built("core", "loom");
        assert_eq!(
            (program.package.as_str(), program.folder.as_path()),
            ("core", Path::new("/w/core"))
        );
    }

    #[test]
    fn the_longest_programs_start_first() {
        let others = [("b", "x"), ("a", "y"), ("a", "x")];
        let mut programs: Vec<Program> = others
            .iter()
            .chain(LONGEST.iter().rev())
            .map(|(package, name)| built(package, name))
            .collect();
        let order = ordered(programs.clone()).unwrap();
        let order: Vec<_> =
            order.iter().map(|it| (it.package.as_str(), it.name.as_str())).collect();
        assert_eq!(order[..LONGEST.len()], *LONGEST);
        assert_eq!(order[LONGEST.len()..], [("a", "x"), ("a", "y"), ("b", "x")]);
        programs.pop();
        assert!(
            ordered(programs).unwrap_err().contains("wave memory"),
            "a program that was renamed"
        );
    }

    #[test]
    fn output_and_exit_status_of_a_program_are_recorded() {
        let folder = std::env::temp_dir();
        let log = folder.join(format!("wave-suite-{}.log", std::process::id()));
        let shell =
            |path: &str| Program { path: path.into(), folder: folder.clone(), ..built("a", "x") };
        assert!(run_one(&shell("/bin/true"), &log).unwrap());
        assert!(!run_one(&shell("/bin/false"), &log).unwrap());
        assert!(run_one(&shell("/bin/env"), &log).unwrap());
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        assert!(text.contains("CARGO_PKG_NAME=a\n"), "{text}");
        assert!(run_one(&shell("/no/such/program"), &log).is_err());
        let _ = std::fs::remove_file(&log);
    }
}
