//! `wave run --agent`: a user's program instead of `wave agent`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

const SCENARIO: &str = r#"name = "own"
kind = "load"
[workload]
keys = 1_000
[run]
seconds = 0.2
warmup_seconds = 0.05
loads_per_second = [1_000]
[[variant]]
name = "offload"
placement = "offload"
policy = "fifo"
"#;

/// Runs the scenario with this script as its agent, started through a symbolic link.
fn run(script: &str, policy: &str, more: &[&str]) -> (Output, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("several-programs");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&program, folder.path().join("own")).unwrap();
    let scenario = SCENARIO.replace("\"fifo\"", &format!("{policy:?}"));
    fs::write(folder.path().join("own.toml"), scenario).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(["run", "own.toml", "--agent", "./own", "--json"]).args(more);
    (command.current_dir(folder.path()).output().unwrap(), folder)
}

fn wave() -> String {
    Path::new(env!("CARGO_BIN_EXE_wave")).display().to_string()
}

#[test]
fn every_agent_of_a_scenario_is_the_users_program() {
    let script = format!("#!/bin/sh\necho \"$0 $@\" >>was-here\nexec {} agent \"$@\"\n", wave());
    let (output, folder) = run(&script, "fifo", &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let was_here = fs::read_to_string(folder.path().join("was-here")).unwrap();
    assert!(was_here.contains("--policies") && was_here.contains("--attach"), "{was_here}");
    // The program is started by the symbolic link's name, as a program may act by its name.
    assert!(was_here.lines().all(|line| line.contains("/own --")), "{was_here}");
}

#[test]
fn agent_program_is_not_searched_for_in_path() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    let output = command.args(["run", "own.toml", "--agent", "sh"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--agent") && errors.contains("No such file"), "{errors}");
}

#[test]
fn a_program_that_cannot_be_executed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text"), "no program").unwrap();
    for program in ["./text", "."] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
        command.args(["run", "own.toml", "--agent", program]).current_dir(folder.path());
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("not an executable file"), "{errors}");
    }
}

#[test]
fn unusable_agent_or_policy_is_refused_before_the_run() {
    let not_one = "#!/bin/sh\nexit 0\n";
    for (script, policy, more, why) in [
        (
            not_one,
            "fifo",
            &[][..],
            "it listed no policies when asked with --policies, and ended (exit status: 0)",
        ),
        ("#!/bin/sh\necho 'mine (any): about'\n", "theirs", &[], "\"theirs\", expected"),
        (
            "#!/bin/sh\necho 'mine (any): about'\n[ \"$2\" != --policy ] || { echo 'wave agent: bad slice' >&2; exit 2; }\n",
            "mine:slice_us=0",
            &[],
            "/own refuses policy `mine:slice_us=0`: bad slice",
        ),
    ] {
        let (output, folder) = run(script, policy, more);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(why), "{errors}");
        assert!(!folder.path().join("out").exists());
    }
    // A real agent with one more policy; and one whose wrapper leaves a process behind that holds its standard error.
    let agent = format!("#!/bin/sh\necho 'mine (any): about'\nexec {} agent \"$@\"\n", wave());
    for script in [agent.clone(), agent.replace("exec", "sleep 20 >/dev/null &\nexec")] {
        let (output, _folder) = run(&script, "shinjuku:slice_us=0", &[]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("own.toml:12: `variant.policy`: "), "{errors}");
        assert!(errors.contains("/own refuses policy `shinjuku:slice_us=0`: "), "{errors}");
    }
}
