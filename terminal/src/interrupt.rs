//! Messages of a command that is interrupted, and its command line for resuming.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{Failure, Progress, counted};

/// Folders to remove when the process is interrupted.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Has `folder` removed if [`say`] ends the process.
pub fn remove_at_end(folder: &Path) {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_path_buf());
}

/// On SIGINT or SIGTERM, removes the folders of [`remove_at_end`], prints `last_words`, and ends the process as the signal would
/// have.
///
/// A signal that the process inherited as ignored stays ignored. Call this once, before threads are pinned.
pub fn say(last_words: impl Fn() -> String + Send + 'static) -> Result<(), Failure> {
    let ignored = ignored();
    let signals = [SIGINT, SIGTERM].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let mut signals = Signals::new(signals).map_err(Failure::cannot)?;
    let body = move || {
        if let Some(signal) = signals.forever().next() {
            for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                let _ = std::fs::remove_dir_all(folder);
            }
            // The cursor may stand behind a progress bar or an echoed ^C. Standard error may have no reader.
            let line = if std::io::stderr().is_terminal() { "\n" } else { "" };
            wave_process::say!("{line}{}", last_words().trim_end_matches('\n'));
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("wave-signals".into()).spawn(body).map_err(Failure::cannot)?;
    Ok(())
}

/// As [`say`], for work in steps whose results are not kept: says how many steps were done. `command` and `step` are
/// the names of the command and of one step.
///
/// # Errors
/// As [`say`].
pub fn say_steps(command: &str, progress: &Progress, step: &'static str) -> Result<(), Failure> {
    let (command, steps, ended) = (command.to_owned(), progress.steps(), progress.ended());
    say(move || {
        let ended = ended.load(Ordering::Relaxed);
        format!("{command}: interrupted: {ended} of {} done; nothing is kept", counted(steps, step))
    })
}

/// Has `signal` set `flag`. A signal that the process inherited as ignored (nohup, a job in the background of a shell) stays
/// ignored.
pub fn register_unless_ignored(signal: i32, flag: &Arc<AtomicBool>) -> Result<(), Failure> {
    if ignored() & (1 << (signal - 1)) == 0 {
        signal_hook::flag::register(signal, Arc::clone(flag)).map_err(Failure::cannot)?;
    }
    Ok(())
}

/// The mask of signals that this process ignores: signal n is bit n - 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// This command line, quoted for a shell, without `--record` and its value, and with `--resume`.
pub fn resuming_command() -> String {
    resuming(words())
}

fn resuming(mut words: impl Iterator<Item = String>) -> String {
    let mut command = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--record" => drop(words.next()),
            "--resume" => {}
            word if word.starts_with("--record=") => {}
            word => command.push(quoted(word)),
        }
    }
    command.push("--resume".to_owned());
    command.join(" ")
}

/// This command line, quoted for a shell.
pub fn same_command() -> String {
    words().map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}

/// The arguments of this command, as text; bytes that are not UTF-8 are replaced.
fn words() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// `word`, quoted as one word of a shell.
pub fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "/._-+=:,@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use signal_hook::consts::{SIGHUP, SIGUSR1};
    use signal_hook::low_level::raise;

    use super::*;

    const ROLE: &str = "WAVE_TEST_INTERRUPT_ROLE";

    /// Body of another process, which inherits SIGHUP as ignored.
    #[test]
    fn ignoring_process() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        let (hangup, other) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        register_unless_ignored(SIGHUP, &hangup).unwrap();
        register_unless_ignored(SIGUSR1, &other).unwrap();
        raise(SIGHUP).unwrap();
        raise(SIGUSR1).unwrap();
        assert!(other.load(Ordering::SeqCst), "a signal that is not ignored sets its flag");
        assert!(!hangup.load(Ordering::SeqCst), "an ignored signal was caught");
        println!("both as expected");
    }

    #[test]
    fn signal_inherited_as_ignored_stays_ignored() {
        let line =
            r#"trap '' HUP; exec "$0" --exact interrupt::tests::ignoring_process --nocapture"#;
        let mut child = Command::new("sh");
        child.args(["-c", line]).arg(std::env::current_exe().unwrap()).env(ROLE, "1");
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("both as expected"), "{output:?}");
    }

    #[test]
    fn resuming_command_is_quoted_for_a_shell() {
        let resuming = |line: &[&str]| resuming(line.iter().map(|word| (*word).to_owned()));
        assert_eq!(
            resuming(&["wave", "run", "a b.toml", "--record", "/logs", "--out=x"]),
            "wave run 'a b.toml' --out=x --resume"
        );
        assert_eq!(resuming(&["wave", "run", "--resume", "x"]), "wave run x --resume");
        assert_eq!(resuming(&["wave", "--record=/logs", "it's"]), r"wave 'it'\''s' --resume");
    }
}
