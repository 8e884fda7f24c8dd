//! `xtask/left-out.sh`: what continuous integration makes of tests that were left out.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const PERMITTED: &str = "# A comment.\nwave-confine denied main\tload a kernel module: denied\nwave memory zram\tno zram\n";

/// Runs the script on this list of tests that were left out.
fn judged(left_out: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("target")).unwrap();
    fs::write(folder.path().join("target/left-out.txt"), left_out).unwrap();
    fs::write(folder.path().join("permitted.txt"), PERMITTED).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("left-out.sh");
    let mut command = Command::new("sh");
    command.arg(script).arg("permitted.txt").current_dir(folder.path()).output().unwrap()
}

fn refusal(left_out: &str) -> String {
    let output = judged(left_out);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn permitted_test_may_be_left_out_for_its_reason() {
    for left_out in [
        "",
        "wave memory zram\tno zram\n",
        "wave memory zram\tno zram\nwave memory zram\tno zram\n",
    ] {
        let output = judged(left_out);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn permitted_test_that_is_left_out_for_another_reason_fails() {
    let refused = refusal(
        "wave-confine denied main\tload a kernel module: denied\nwave-confine denied main\tseccomp: not in this kernel\n",
    );
    assert!(refused.contains("wave-confine denied main: seccomp: not in this kernel"), "{refused}");
    assert!(!refused.contains("kernel module"), "{refused}");
}

/// Names and reasons are compared whole, neither as patterns nor as parts of a line.
#[test]
fn other_test_that_is_left_out_fails() {
    for other in [
        "wave memory other\tno zram",
        "wave memory\tno zram",
        "wave memory zram\tno",
        "wave memory z.am\tno zram",
    ] {
        assert!(refusal(&format!("{other}\n")).contains(&other.replace('\t', ": ")), "{other}");
    }
}
