//! Checks of commands on the default machine, all in one boot.

use serde_json::Value;

use super::shared_boot::Check;
use super::suite::{Answer, expect, has_decided};
use super::{Program, WAVE, WAVE_BENCH, built_as_tested};

/// All checks. The one that may crash the kernel comes last.
pub const CHECKS: &[Check] = &[
    Check {
        name: "wave linux status shows a run, which ends cleanly",
        command: shows,
        judge: has_shown,
    },
    Check {
        name: "a user's own agent, which attaches late, schedules a command",
        command: own_agent,
        judge: has_waited,
    },
    Check {
        name: "wave run schedules every thread of the machine",
        command: takes_everything,
        judge: has_taken_everything,
    },
    Check {
        name: "an agent that hangs is killed and replaced",
        command: hangs,
        judge: |answer| expect(answer, 0, "replaced\nended 143\n"),
    },
    Check { name: "wave bench kernel measures", command: measures, judge: has_measured },
    Check {
        name: "an exiting thread never waits behind an endless run",
        command: exits,
        judge: |answer| expect(answer, 0, "0\nenabled\n"),
    },
    Check {
        name: "the kernel patches itself under load",
        command: patches,
        judge: |answer| expect(answer, 0, ""),
    },
];

const OWN: Program = Program {
    flags: &[
        "--manifest-path",
        "docs/guide/my-policy/Cargo.toml",
        "--target-dir",
        "target/guide",
        "--example",
        "lab",
    ],
    package: "my-policy",
    kind: "bin",
    name: "my-policy",
};

fn shell(line: &str) -> Result<Vec<String>, String> {
    Ok(["sh", "-c", line].map(String::from).to_vec())
}

/// Loading a scheduler patches branches of the kernel that the other CPUs execute at that time. Not
/// every QEMU copes ([`super::machine`]); with one that does not, this ends in a panic.
fn patches() -> Result<Vec<String>, String> {
    let line = "for task in 1 2; do while :; do /bin/true; done & done
        for round in $(seq 200); do
            for on in 1 0; do echo $on > /proc/sys/kernel/sched_schedstats || exit 1; done
        done";
    shell(line)
}

/// Another process sees a run, and the run passes SIGTERM on to its command. Neither leaves a process behind.
fn shows() -> Result<Vec<String>, String> {
    let wave = built_as_tested(WAVE)?;
    let line = format!(
        "wave={wave}
        $wave linux status 2>/dev/null; echo none $?
        $wave run --host linux --patience 5000 --quiet -- sleep 1000 & run=$!
        shows_sleep() {{ $wave linux status --json >/run/shown 2>/dev/null; grep -q '\"name\":\"sleep\"' /run/shown; }}
        until shows_sleep; do kill -0 $run || exit; sleep 0.2; done
        grep -c '\"policy\":\"fifo\"' /run/shown
        kill -TERM $run; wait $run; echo ended $?
        $wave linux status 2>/dev/null; echo none $?
        pgrep -x sleep; cat /sys/kernel/sched_ext/state
        $wave run --host linux --pid 2 2>/dev/null; echo a kernel thread $?
        $wave run --host linux --cpus 7 -- true 2>/dev/null; echo an offline CPU $?"
    );
    shell(&line)
}

fn has_shown(answer: &Answer) -> Result<(), String> {
    let out = "none 1\n1\nended 143\nnone 1\ndisabled\na kernel thread 2\nan offline CPU 3\n";
    expect(answer, 0, out)
}

/// The guide's policy, in a program without any knowledge of this kernel. On a busy machine, an agent once took over ten seconds
/// to attach, which ended the run.
fn own_agent() -> Result<Vec<String>, String> {
    let wave = built_as_tested(WAVE)?;
    let own = built_as_tested(OWN)?;
    let line = format!(
        r#"printf '#!/bin/sh\ncase "$*" in *--attach*) sleep 11 ;; esac\nexec %s "$@"\n' {own} >/run/late
        chmod +x /run/late
        exec {wave} run --host linux --agent /run/late --policy lottery:tickets=2/1 --patience 5000 --json \
            -- sh -c 'for round in 1 2 3 4; do true | cat; done'"#
    );
    shell(&line)
}

fn has_waited(answer: &Answer) -> Result<(), String> {
    has_decided(answer)?;
    let is_told = answer.err.contains("the agent has not attached yet");
    if is_told { Ok(()) } else { Err(format!("no word of the wait: {:?}", answer.err)) }
}

/// The machine stays usable, also without an agent, and all threads have their old scheduling class afterwards. The agent
/// decides for the shell and its children, but not for the run and the agent itself, nor for a thread that may only run on the
/// agent's CPU.
fn takes_everything() -> Result<Vec<String>, String> {
    let wave = built_as_tested(WAVE)?;
    let line = format!(
        r#"wave={wave}
        work() {{ all=; for one in 1 2 3 4; do (true | cat; echo $one) & all="$all $!"; done; wait $all; }}
        status() {{ $wave linux status 2>/dev/null; }}
        complete() {{ status | sed -n 's/.*COMPLETE \([0-9]*\).*/\1/p'; }}
        is_here() {{ $wave linux status --json | grep -cw "\"tid\":$1"; }}
        $wave run --host linux --all --patience 5000 --quiet & run=$!
        until status | grep -q 'agent .* decides'; do kill -0 $run || exit; sleep 0.2; done
        cat /sys/kernel/sched_ext/root/ops
        agent=$(pgrep -P $run)
        is_here $$; is_here $agent; is_here $run
        before=$(complete); work | sort; after=$(complete)
        [ $after -ge $((before + 8)) ] && echo decided
        taskset 2 echo beside the agent
        kill -KILL $agent; work | sort
        until status | grep 'agent .* decides' | grep -qv "agent $agent "; do kill -0 $run || exit; sleep 0.2; done
        work | sort
        kill -TERM $run; wait $run; echo ended $?
        cat /sys/kernel/sched_ext/state; chrt -p $$ | grep -c SCHED_OTHER
        dmesg | grep -cE 'sched_ext.*(error|stall)'
        true"#
    );
    shell(&line)
}

fn has_taken_everything(answer: &Answer) -> Result<(), String> {
    let worked = "1\n2\n3\n4\n";
    let out = format!(
        "wave_all\n1\n0\n0\n{worked}decided\nbeside the agent\n{worked}{worked}ended 0\ndisabled\n1\n0\n"
    );
    expect(answer, 0, &out)
}

/// A stopped agent does not learn that the host has turned it out, as one in an endless loop does not.
fn hangs() -> Result<Vec<String>, String> {
    let wave = built_as_tested(WAVE)?;
    let line = format!(
        r#"wave={wave}
        agent() {{ pgrep -P $run -f -- --attach; }}
        decides() {{ $wave linux status 2>/dev/null | grep -q 'agent .* decides'; }}
        until_true() {{ until "$@"; do kill -0 $run || exit; sleep 0.2; done; }}
        $wave run --host linux --patience 5000 --quiet -- sh -c 'while :; do true | cat; sleep 0.1; done' 2>/dev/null & run=$!
        until_true decides
        first=$(agent); kill -STOP $first
        is_another() {{ second=$(agent) && [ "$second" != "$first" ]; }}
        until_true is_another
        until_true decides
        echo replaced
        kill -TERM $run; wait $run; echo ended $?"#
    );
    shell(&line)
}

/// The kernel puts an exiting thread that wakes behind its core's run, without asking the scheduler: here the first process of
/// a namespace, which exits when the last other one has been waited for. After 30 s of waiting the kernel would disable the
/// scheduler.
fn exits() -> Result<Vec<String>, String> {
    let wave = built_as_tested(WAVE)?;
    let line = format!(
        r#"wave={wave}
        $wave run --host linux --cpus 0 --patience 4000 --quiet -- sh -c '
            (until [ -e /run/spin ]; do sleep 0.1; done; echo >/run/spins; while :; do :; done) &
            unshare --pid --fork sh -c "until [ -e /run/go ]; do sleep 0.1; done" & wait' 2>/dev/null & run=$!
        until first=$(pgrep -P $(pgrep -x unshare) 2>/dev/null); do sleep 0.2; done
        nsenter -t $first -p sleep 1000 2>/dev/null & holder=$!
        until [ "$(ps -o comm= --ppid $holder)" = sleep ]; do sleep 0.2; done
        last=$(pgrep -P $holder)
        kill -STOP $holder; echo >/run/go
        until grep -q State:.Z /proc/$last/status; do sleep 0.2; done
        echo >/run/spin; until [ -e /run/spins ]; do sleep 0.2; done
        grep -c State:.Z /proc/$first/status
        kill -CONT $holder
        while [ -e /proc/$first ] && ! grep -q State:.Z /proc/$first/status; do sleep 0.2; done
        cat /sys/kernel/sched_ext/state
        kill -KILL $run"#
    );
    shell(&line)
}

fn measures() -> Result<Vec<String>, String> {
    built_as_tested(WAVE_BENCH)?;
    let wave = built_as_tested(WAVE)?;
    let line = format!("{wave} bench kernel --json --chunks 1 --patience 5000");
    shell(&line)
}

/// Times mean nothing here, so any number above 0 will do.
fn has_measured(answer: &Answer) -> Result<(), String> {
    let Answer { exit_code, out, err } = answer;
    let json: Value = serde_json::from_str(out).map_err(|error| {
        format!("no object ({error}): exit code {exit_code}, output {out:?}, errors {err:?}")
    })?;
    let wanted = [
        "/wakeup_ratio_vs_eevdf/median",
        "/wakeup_us/wave/p50",
        "/wakeup_us/wave/p99",
        "/wakeup_us/eevdf/p50",
        "/wakeup_us/eevdf/p99",
        "/message_to_decision_us/p50",
        "/message_to_decision_us/p99",
    ];
    let positive =
        |path: &str| json.pointer(path).and_then(Value::as_f64).is_some_and(|it| it > 0.0);
    match wanted.iter().find(|path| !positive(path)) {
        None => expect(answer, 0, out),
        Some(path) => Err(format!("{path} is no number above 0: {out}")),
    }
}
