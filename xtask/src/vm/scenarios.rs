//! Shipped scenarios that need the machine's kernel, shortened.

use serde_json::Value;

use super::kernel::Kernel;
use super::machine::Wanted;
use super::suite::{Answer, in_machine};
use super::{WAVE, built, built_as_tested};

const BAKEOFF: &str = include_str!("../../../scenarios/memory-bakeoff.toml");
const TWO_ENCLAVES: &str = include_str!("../../../scenarios/kernel/two-enclaves.toml");

/// The text with these replacements. Fails if a text to be replaced is missing.
fn replaced(text: &str, changes: &[(&str, &str)]) -> Result<String, String> {
    changes.iter().try_fold(text.to_owned(), |text, (from, to)| {
        let is_there = text.contains(from);
        is_there
            .then(|| text.replace(from, to))
            .ok_or_else(|| format!("the scenario has no {from:?} to replace"))
    })
}

/// Keeps the first and the last table of each list, such as `[[damon]]`; of programs only the first.
fn ends(text: &str) -> String {
    let mut parts = text.split("\n[[");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    let parts: Vec<(&str, &str)> =
        parts.map(|part| (part.split("]]").next().unwrap_or_default(), part)).collect();
    for (at, (list, part)) in parts.iter().enumerate() {
        let is_there = |parts: &[(&str, &str)]| parts.iter().any(|(other, _)| other == list);
        let is_last = !is_there(&parts[at + 1..]) && *list != "program";
        if is_last || !is_there(&parts[..at]) {
            kept.push_str("\n[[");
            kept.push_str(part);
        }
    }
    kept
}

fn shell(kernel: &Kernel, line: &str, wanted: Wanted) -> Result<Answer, String> {
    let command = ["sh", "-c", line].map(String::from).to_vec();
    in_machine(kernel, &Wanted { command, ..wanted })
}

/// One program and two settings of each tool, in runs too short for meaningful figures: all tools work, including those that
/// tune themselves, and none of them leaves anything behind.
pub fn bake_off_compares(kernel: &Kernel) -> Result<(), String> {
    let wave = built("wave", &["build", "--release"])?;
    let changes = [
        ("\nwarmup_seconds = 7", "\nwarmup_seconds = 5"),
        ("\nseconds = 3", "\nseconds = 1"),
        ("\nwarmup_seconds = 80", "\nwarmup_seconds = 5"),
        ("\nseconds = 48", "\nseconds = 1"),
        ("\"512MiB\"", "\"128MiB\""),
        ("\"128MiB\"\naccesses_per_second = 40000", "\"16MiB\"\naccesses_per_second = 5000"),
    ];
    let scenario = replaced(&ends(BAKEOFF), &changes)?;
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
    // The guest's time advances with its instructions, so the program keeps up however busy the host is.
    let modules = vec!["zram".into()];
    let wanted = Wanted { icount: true, cpus: 1, modules, ..Wanted::default() };
    let answer = shell(kernel, &line, wanted)?;
    let wrong = |why: &str| Err(format!("{why}: {}{}", answer.out, answer.err));
    // Anything left behind is a line of its own, which makes the output invalid JSON.
    let Ok(json) = serde_json::from_str::<Value>(&answer.out) else {
        return wrong("not one JSON object, or a tool left something behind");
    };
    if !answer.err.contains("report.html") {
        return wrong("the output has no report");
    }
    match wrongly_compared(&json) {
        None => Ok(()),
        Some(what) => wrong(&what),
    }
}

/// The first fault of a comparison, if any: a tool that paged nothing out, a setting under which the program did not keep up, no
/// setting of DAMON with self-tuned values, or a missing ratio.
fn wrongly_compared(json: &Value) -> Option<String> {
    let points = |tool: &str| {
        let points = json.pointer("/programs/0/points").and_then(Value::as_array);
        let of_tool = |point: &&Value| point["tool"] == *tool;
        points.map(|points| points.iter().filter(of_tool).collect::<Vec<_>>()).unwrap_or_default()
    };
    let rivals = ["damon", "mglru", "reclaim"];
    for tool in rivals.iter().chain(&["sol"]) {
        let points = points(tool);
        if !points.iter().any(|point| point["swapped_bytes"].as_f64() > Some(0.0)) {
            return Some(format!("{tool} paged nothing out"));
        }
        if points.iter().any(|point| point["kept_up"] != true) {
            return Some(format!("{tool}: the program did not keep up"));
        }
    }
    if !points("damon").iter().any(|point| point["tuned"].is_string()) {
        return Some("damon: no setting reports its self-tuned values".to_owned());
    }
    let against = rivals.map(|rival| (rival, format!("/programs/0/sol_vs/{rival}")));
    let best = ("best", "/sol_vs_best_rival/hot set".to_owned());
    let mut ratios = against.into_iter().chain([best]);
    let is_there = |at: &str| json.pointer(at).is_some_and(|ratio| ratio["overlap"].is_boolean());
    ratios.find(|(_, at)| !is_there(at)).map(|(rival, _)| format!("{rival}: not compared"))
}

/// The programs of both enclaves end, and agents have decided for both.
pub fn two_enclaves(kernel: &Kernel) -> Result<(), String> {
    let wave = built_as_tested(WAVE)?;
    let scenario = replaced(TWO_ENCLAVES, &[("20000000", "200000")])?;
    let line = format!(
        "cat >/run/short.toml <<'END'\n{scenario}\nEND\n{wave} run --host linux /run/short.toml --json"
    );
    // The enclaves have CPUs 0 to 2, and the agents CPU 3.
    let answer = shell(kernel, &line, Wanted { cpus: 4, ..Wanted::default() })?;
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
    use serde_json::json;

    use super::{BAKEOFF, ends, replaced, wrongly_compared};

    #[test]
    fn a_comparison_with_a_missing_tool_or_ratio_or_a_slow_program_is_wrong() {
        let point = |tool: &str, swapped: f64, kept_up: bool| json!({ "tool": tool, "swapped_bytes": swapped, "kept_up": kept_up, "tuned": "x" });
        let ratio = |is_there: bool| is_there.then(|| json!({ "ratio": 1.0, "overlap": false }));
        let result = |mglru_kept_up: bool, vs_mglru: bool, vs_best: bool, swapped: f64| {
            json!({
                "programs": [{
                    "points": [
                        point("sol", 1.0, true), point("damon", swapped, true), point("mglru", 1.0, mglru_kept_up),
                        point("reclaim", 1.0, true),
                    ],
                    "sol_vs": { "damon": ratio(true), "mglru": ratio(vs_mglru), "reclaim": ratio(true) },
                }],
                "sol_vs_best_rival": { "hot set": ratio(vs_best) },
            })
        };
        assert_eq!(wrongly_compared(&result(true, true, true, 1.0)), None);
        for (wrong, who) in [
            (result(false, true, true, 1.0), "mglru"),
            (result(true, false, true, 1.0), "mglru"),
            (result(true, true, false, 1.0), "best"),
            (result(true, true, true, 0.0), "damon"),
            (json!({}), "damon"),
        ] {
            assert!(wrongly_compared(&wrong).unwrap().starts_with(who));
        }
    }

    #[test]
    fn the_first_and_the_last_of_each_list_are_kept() {
        let text = "a\n[[b]]\n1\n[[c]]\n2\n[[b]]\n3\n[[b]]\n4\n[[program]]\n5\n[[program]]\n6";
        assert_eq!(ends(text), "a\n[[b]]\n1\n[[c]]\n2\n[[b]]\n4\n[[program]]\n5");
        for (list, count) in
            [("program", 1), ("wave", 2), ("damon", 2), ("mglru", 2), ("reclaim", 2)]
        {
            assert_eq!(ends(BAKEOFF).matches(&format!("[[{list}]]")).count(), count, "{list}");
        }
        assert!(replaced("a", &[("b", "c")]).is_err());
    }
}
