//! Scenarios that need the machine's kernel, as they ship, but shorter.

use serde_json::Value;

use super::built;
use super::kernel::Kernel;
use super::machine::Wanted;
use super::tests::{Answer, in_machine};

const BAKEOFF: &str = include_str!("../../../scenarios/memory-bakeoff.toml");
const TWO_ENCLAVES: &str = include_str!("../../../scenarios/kernel/two-enclaves.toml");

/// The text with each of these replaced, which are all there.
fn replaced(text: &str, changes: &[(&str, &str)]) -> Result<String, String> {
    changes.iter().try_fold(text.to_owned(), |text, (from, to)| {
        let is_there = text.contains(from);
        is_there.then(|| text.replace(from, to)).ok_or_else(|| format!("no {from:?} in it"))
    })
}

/// Of each list of tables, such as `[[program]]`, the first.
fn firsts(text: &str) -> String {
    let mut parts = text.split("\n[[");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    let mut lists = Vec::new();
    for part in parts {
        let list = part.split("]]").next().unwrap_or_default();
        if !lists.contains(&list) {
            lists.push(list);
            kept.push_str("\n[[");
            kept.push_str(part);
        }
    }
    kept
}

fn shell(kernel: &Kernel, line: &str, modules: &[&str], cpus: u32) -> Result<Answer, String> {
    let command = ["sh", "-c", line].map(String::from).to_vec();
    let modules = modules.iter().copied().map(String::from).collect();
    in_machine(kernel, &Wanted { cpus, command, modules, ..Wanted::default() })
}

/// One program, one setting each, and too short for the figures to mean anything: that all tools work, and that nothing
/// of them is left.
pub fn bake_off_compares(kernel: &Kernel) -> Result<(), String> {
    let wave = built("wave", &["build", "--release"])?;
    let changes = [
        ("\nwarmup_seconds = 7", "\nwarmup_seconds = 5"),
        ("\nseconds = 3", "\nseconds = 1"),
        ("\"512MiB\"", "\"128MiB\""),
        ("\"128MiB\"\naccesses_per_second = 40000", "\"32MiB\"\naccesses_per_second = 5000"),
    ];
    let scenario = replaced(&firsts(BAKEOFF), &changes)?;
    let line = format!(
        r#"cat >/run/short.toml <<'END'
{scenario}
END
        before=$(cat /sys/module/damon_stat/parameters/enabled)
        {wave} run /run/short.toml --json --out /run/out || exit
        ls /run/out/memory-bakeoff >&2
        [ "$before" = "$(cat /sys/module/damon_stat/parameters/enabled)" ] || echo damon_stat
        [ 0 = "$(cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds)" ] || echo kdamonds
        [ 1 = "$(wc -l </proc/swaps)" ] || echo swap
        [ -z "$(cat /sys/fs/cgroup/cgroup.subtree_control)" ] || echo controller
        ls -d /sys/fs/cgroup/wave-* 2>/dev/null; true"#
    );
    let answer = shell(kernel, &line, &["zram"], 2)?;
    let wrong = |why: &str| Err(format!("{why}: {}{}", answer.out, answer.err));
    // Whatever was left is a line of its own, and then this is no object.
    let Ok(json) = serde_json::from_str::<Value>(&answer.out) else {
        return wrong("not one object, or something was left");
    };
    let points = json.pointer("/programs/0/points").and_then(Value::as_array);
    let swapped = |point: &Value| point["swapped_bytes"].as_f64().is_some_and(|bytes| bytes > 0.0);
    let has = |key: &str| json[key]["hot set"].as_f64().is_some_and(|ratio| ratio > 0.0);
    let compared = has("net_saved_ratio_vs_damon") && has("net_saved_ratio_vs_mglru");
    match points.map(|points| points.len() == 3 && points.iter().all(swapped)) {
        Some(true) if compared && answer.err.contains("report.html") => Ok(()),
        _ => wrong("a tool paged nothing out, or was not compared"),
    }
}

/// Both enclaves' programs come to their ends, and agents have decided for both.
pub fn two_enclaves(kernel: &Kernel) -> Result<(), String> {
    let wave = built("wave", &["build"])?;
    let scenario = replaced(TWO_ENCLAVES, &[("20000000", "200000")])?;
    let line = format!(
        "cat >/run/short.toml <<'END'\n{scenario}\nEND\n{wave} run --host linux /run/short.toml --json"
    );
    // The enclaves have CPUs 0 to 2, and the agents CPU 3.
    let answer = shell(kernel, &line, &[], 4)?;
    let result: Value =
        serde_json::from_str(&answer.out).map_err(|error| format!("{error}: {answer:?}"))?;
    let decided = |of: &Value| of["outcomes"]["COMPLETE"].as_u64() > Some(0);
    let both = result["enclaves"].as_array().filter(|both| both.len() == 2);
    if answer.exit_code == 0 && both.is_some_and(|both| both.iter().all(decided)) {
        return Ok(());
    }
    Err(format!("{answer:?}"))
}

#[cfg(test)]
mod of_texts {
    use super::{BAKEOFF, firsts, replaced};

    #[test]
    fn the_first_of_each_list_is_kept() {
        assert_eq!(firsts("a\n[[b]]\n1\n[[c]]\n2\n[[b]]\n3"), "a\n[[b]]\n1\n[[c]]\n2");
        for list in ["program", "wave", "damon", "mglru"] {
            assert_eq!(firsts(BAKEOFF).matches(&format!("[[{list}]]")).count(), 1, "{list}");
        }
        assert!(replaced("a", &[("b", "c")]).is_err());
    }
}
