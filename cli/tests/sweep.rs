//! `wave sweep` and `wave merge`, from the command line.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

const SCENARIO: &str = r#"name = "small"
kind = "load"
[workload]
keys = 1_000
[run]
seconds = 0.03
warmup_seconds = 0.005
loads_per_second = [20_000, 60_000]
[[variant]]
name = "offload, shared memory"
placement = "offload"
policy = "fifo"
[[variant]]
name = "offload, PCIe-like link"
placement = "offload"
policy = "fifo"
link = "model:mount-evans"
[sweep]
"host.cores" = [1, 2, 4]
"variant[offload, PCIe-like link].prestage" = [0, 2]
"run.seed" = [1, 2, 3, 4]
"#;

const SHARDS: usize = 4;

fn wave(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str], directory: &Path) -> Output {
    wave(arguments, directory).output().expect("wave can be run")
}

/// A directory with `text` as `small.toml` in it.
fn directory(text: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory for this test");
    fs::write(directory.path().join("small.toml"), text).expect("it can be written to");
    directory
}

/// Asserts that `output` is a refusal with exit code 2, and returns its message.
fn refusal(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(output.stdout.is_empty());
    text
}

#[test]
fn bad_sweep_is_refused_and_creates_no_files() {
    for (from, to, expected) in [
        ("[1, 2, 4]", "[]", "small.toml:19: [sweep] \"host.cores\" is []: a sweep over nothing"),
        (
            "[1, 2, 4]",
            "[1, 0]",
            "[sweep] with \"host.cores\" = 0: `host.cores` is 0, expected 1 to 240",
        ),
        ("\"host.cores\"", "\"host.coers\"", "unknown field `coers`, expected one of `cores`"),
    ] {
        let directory = directory(&SCENARIO.replacen(from, to, 1));
        let refused = output(&["sweep", "small.toml", "--out", "out", "--json"], directory.path());
        assert!(refusal(&refused).contains(expected), "{}", refusal(&refused));
        assert!(!directory.path().join("out").exists());
    }
}

#[test]
fn run_refuses_a_sweep_and_merge_refuses_other_folders() {
    let directory = directory(SCENARIO);
    let run = output(&["run", "small.toml"], directory.path());
    assert!(refusal(&run).contains("run them with `wave sweep`"));
    let merge = output(&["merge", ".", "--json"], directory.path());
    assert!(refusal(&merge).contains("expected a directory made by `wave sweep --out`"));
}

/// Starts a shard that runs its points one after the other.
fn start(shard: usize, directory: &Path) -> Child {
    let shard = format!("{shard}/{SHARDS}");
    let arguments =
        ["sweep", "small.toml", "--out", "parts", "--shard", &shard, "--jobs", "1", "--quiet"];
    wave(&arguments, directory).stdout(Stdio::null()).spawn().expect("wave can be run")
}

/// Waits until `shard` has written a point, or has ended.
fn wait_for_a_point(shard: usize, child: &mut Child, directory: &Path) {
    let has_one = || {
        let manifest = fs::read(directory.join("parts/sweep.json")).ok()?;
        let manifest: Value = serde_json::from_slice(&manifest).ok()?;
        let mut ids = manifest["points"].as_array()?.iter().skip(shard).step_by(SHARDS);
        let name = |id: &Value| format!("parts/points/{}.json", id.as_str().unwrap_or_default());
        Some(ids.any(|id| directory.join(name(id)).exists()))
    };
    while has_one() != Some(true) && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn killed_and_restarted_shards_give_the_same_bytes_as_one_process() {
    let directory = directory(SCENARIO);
    let directory = directory.path();
    let mut shards: Vec<Child> = (0..SHARDS).map(|shard| start(shard, directory)).collect();
    for (number, shard) in shards.iter_mut().enumerate() {
        let killed = number % 2 == 1;
        if killed {
            wait_for_a_point(number, shard, directory);
            shard.kill().expect("it can be killed");
        }
        let status = shard.wait().expect("it ends");
        assert!(killed || status.success(), "shard {number}: {status}");
    }

    let merge = output(&["merge", "parts", "--json"], directory);
    let told: Value = serde_json::from_slice(&merge.stdout).expect("one object and nothing else");
    if merge.status.code() == Some(1) {
        let missing = told["missing"].as_array().expect("a list").len();
        let commands = told["commands"].as_array().expect("a list");
        let lacks: u64 = commands.iter().filter_map(|each| each["missing"].as_u64()).sum();
        assert_eq!(missing as u64, lacks);
        // The printed commands can be typed unchanged.
        for command in commands {
            let words: Vec<&str> =
                command["command"].as_str().expect("a command").split(' ').collect();
            assert_eq!(words[0], "wave");
            let again = output(&[&words[1..], &["--quiet"]].concat(), directory);
            assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
        }
    }
    assert!(output(&["merge", "parts"], directory).status.success());

    let whole = output(&["sweep", "small.toml", "--out", "whole", "--json"], directory);
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let told: Value = serde_json::from_slice(&whole.stdout).expect("one object and nothing else");
    assert_eq!((&told["kept"], &told["ran"]), (&0.into(), &told["points"]));
    assert!(output(&["merge", "whole"], directory).status.success());
    for file in ["results.json", "results.csv", "report.html"] {
        let [parts, whole] = ["parts", "whole"]
            .map(|out| fs::read(directory.join(out).join(file)).expect("a result"));
        assert!(parts == whole, "{file} differs");
    }

    let kept = output(&["sweep", "small.toml", "--out", "whole", "--json"], directory);
    let told: Value = serde_json::from_slice(&kept.stdout).expect("one object and nothing else");
    assert_eq!((&told["ran"], &told["kept"]), (&0.into(), &told["points"]));
    fs::write(directory.join("small.toml"), SCENARIO.replace("0.03", "0.04")).expect("written");
    let other = output(&["sweep", "small.toml", "--out", "whole"], directory);
    assert!(refusal(&other).contains("another text of small, which differs from line 6 on"));
}

/// Memory, simulated, and agents that are killed: kinds whose points are whole experiments.
#[test]
fn scenarios_of_other_kinds_are_swept_as_whole_experiments() {
    let memory = "name = \"small\"\nkind = \"memory\"\n[workload]\nkeys = 20_000\n[run]\nseconds = 2\n[[variant]]\n\
                  name = \"without\"\n[[variant]]\nname = \"SOL\"\npolicy = \"sol\"\n\
                  [sweep]\n\"workload.keys\" = [20_000, 40_000]\n";
    let crash = "name = \"small\"\nkind = \"crash\"\n[workload]\nkeys = 1_000\n[crash]\nkills = 2\nevery_ms = 20\n\
                 load_per_second = 5_000\n[[variant]]\nname = \"agent\"\nplacement = \"offload\"\npolicy = \"fifo\"\n\
                 [sweep]\n\"crash.load_per_second\" = [5_000, 10_000]\n\"run.seed\" = [1, 2]\n";
    for (text, rows, figure) in
        [(memory, 2, "variants[SOL].resident_before_bytes"), (crash, 4, "crashes")]
    {
        let directory = directory(text);
        let swept = output(&["sweep", "small.toml", "--out", "out", "-q"], directory.path());
        assert!(swept.status.success(), "{}", String::from_utf8_lossy(&swept.stderr));
        let again = output(&["sweep", "small.toml", "--out", "out", "--json"], directory.path());
        let again: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!((&again["kept"], &again["ran"]), (&rows.into(), &0.into()));
        let merged = output(&["merge", "out"], directory.path());
        assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
        let csv = fs::read_to_string(directory.path().join("out/results.csv")).unwrap();
        assert_eq!(csv.lines().count(), rows + 1, "{csv}");
        assert!(csv.lines().next().unwrap().split(',').any(|name| name == figure), "{csv}");
        let json = fs::read(directory.path().join("out/results.json")).unwrap();
        let json: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["rows"][0]["run"]["host"], "sim");
    }
}
