//! Programs of which a process is killed at a random instant, and the others soon after: the peer of each connection gets a part of what was
//! written, and then an end or a reset; and the agent keeps nothing.

use std::collections::HashMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::compare::peer_listens;
use super::model::{ACTORS, PEER, Step, TEST};
use super::plan::{Plan, Random};
use super::stage::{Scene, Stage};
use crate::network::PATIENCE;

/// The step in which the peer reads what is left.
const LEAVE: i32 = -1;
/// Longest time between the beginning of a step and a kill.
const DELAY_US_MAX: usize = 4_000;
/// Delays of every second kill are shorter.
const SHORT_DELAY_US_MAX: usize = 200;
/// Programs after which the agent has allocated what it needs.
const WARM_UP: usize = 10;
/// Growth of the agent's memory that is no leak: allocators keep what was freed.
const GROWTH_BYTES_MAX: u64 = 24 << 20;
/// An agent has fewer descriptors than that besides those of programs.
const GROWTH_DESCRIPTORS_MAX: usize = 2;

/// What one worker has played.
#[derive(Debug, Default)]
pub struct Killed {
    pub programs: usize,
    pub connections: usize,
    /// Programs whose process was killed inside of a call that waits.
    pub waiting: usize,
    pub demoted: usize,
    pub failures: Vec<String>,
}

/// What an agent has in use.
#[derive(Clone, Copy, Debug)]
struct Usage {
    descriptors: usize,
    bytes: u64,
}

impl Usage {
    fn of(stage: &Stage) -> Usage {
        let process = format!("/proc/{}", stage.up.agent.0.id());
        let descriptors = fs::read_dir(format!("{process}/fd")).unwrap().count();
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        Usage { descriptors, bytes: (kib("RssAnon:") + kib("RssShmem:")) << 10 }
    }
}

/// Plays programs with these seeds over the agent, each with a kill.
pub fn kill_all(stage: &mut Stage, seeds: &[u64]) -> Killed {
    let mut killed = Killed::default();
    let descriptors = Usage::of(stage).descriptors + GROWTH_DESCRIPTORS_MAX;
    let mut warm = None;
    for seed in seeds {
        let ended = killed.play(stage, *seed).and_then(|()| is_clean(stage, descriptors));
        if let Err(why) = ended {
            killed.failures.push(format!("WAVE_SHARING_SEED={seed}: {why}\n{}", stage.said()));
            break;
        }
        killed.programs += 1;
        if killed.programs == WARM_UP {
            warm = Some(Usage::of(stage).bytes);
        }
    }
    let bytes = Usage::of(stage).bytes;
    if let Some(before) = warm.filter(|before| bytes > before + GROWTH_BYTES_MAX) {
        let count = killed.programs;
        killed.failures.push(format!("after {count} programs, memory grew: {before} to {bytes}"));
    }
    let counters = &stage.up.report()["counters"];
    killed.demoted = counters["demoted"].as_u64().unwrap() as usize;
    killed
}

/// Waits until an agent has no sockets, except for those that wait for late segments, and no descriptors of programs.
fn is_clean(stage: &Stage, descriptors_max: usize) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let report = stage.up.report();
        let sockets = report["sockets"].as_array().unwrap().iter();
        let left: Vec<_> = sockets.filter(|socket| socket["state"] != "TIME-WAIT").collect();
        let usage = Usage::of(stage);
        if left.is_empty() && usage.descriptors <= descriptors_max {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("the agent keeps {usage:?} and {left:?}"));
        }
        sleep(Duration::from_millis(5));
    }
}

impl Killed {
    fn play(&mut self, stage: &mut Stage, seed: u64) -> Result<(), String> {
        let plan = Plan::of(seed);
        let (mut steps, connections) = plan.steps(0);
        steps.insert(0, peer_listens());
        let mut random = Random(!seed);
        let (instant, victim) = choose(&steps, &mut random);
        let last = steps[..instant].iter().rfind(|step| step.actor == victim);
        self.waiting += usize::from(last.is_some_and(Step::gives_away));
        self.connections += connections;
        steps.insert(instant, Step::of_test("kill"));

        let scene = stage.start(&steps, true);
        scene.give(steps[0].actor, 0);
        let hangs = |scene: &Scene| format!("it hangs after\n{}", scene.seen());
        loop {
            let at = scene.await_token(PATIENCE).ok_or_else(|| hangs(&scene))? as usize;
            if at == instant {
                break;
            }
            stage.up.replace();
            scene.give(steps[at + 1].actor, at as i32 + 1);
        }
        let seen = scene.kill(victim, (&steps, instant), &mut random)?;
        is_right(&steps, instant, &seen)
            .map_err(|why| format!("{why} after a kill of {victim}\n{}", described(&steps, &seen)))
    }
}

impl Scene {
    /// Lets the program go on, kills a process soon after, then the others. What was seen, once the peer has read everything.
    fn kill(
        mut self,
        victim: usize,
        (steps, instant): (&[Step], usize),
        random: &mut Random,
    ) -> Result<String, String> {
        let process = self.process(victim).expect("it has begun");
        let mut delay = || {
            let longest =
                if random.next().is_multiple_of(2) { SHORT_DELAY_US_MAX } else { DELAY_US_MAX };
            Duration::from_micros(random.below(longest) as u64)
        };
        self.give(steps[instant + 1].actor, instant as i32 + 1);
        sleep(delay());
        // It may have ended.
        let _ = kill_process(process, Signal::KILL);
        sleep(delay());
        self.actors.kill();
        self.give(PEER, LEAVE);
        loop {
            match self.await_token(PATIENCE) {
                Some(LEAVE) => return Ok(self.seen()),
                Some(_) => {}
                None => {
                    return Err(format!("the peer hangs\n{}", described(steps, &self.seen())));
                }
            }
        }
    }
}

/// The step before which the time of a kill begins to count, and the process to kill. Every third kill is of a process inside of a call that
/// waits, if there is one, and every third of the one that plays next.
fn choose(steps: &[Step], random: &mut Random) -> (usize, usize) {
    let waits = |at: &usize| steps[at - 1].gives_away();
    let plays = |at: &usize| alive(&steps[..*at]).contains(&steps[*at].actor);
    let kind = random.below(3);
    let all = 1..steps.len();
    let instants: Vec<usize> = match kind {
        0 => all.clone().filter(waits).collect(),
        _ => all.clone().filter(plays).collect(),
    };
    let any: Vec<usize> = all.filter(|at| !alive(&steps[..*at]).is_empty()).collect();
    let instants = if instants.is_empty() { any } else { instants };
    let instant = instants[random.below(instants.len())];
    let alive = alive(&steps[..instant]);
    let victim = match kind {
        0 if waits(&instant) => steps[instant - 1].actor,
        1 if plays(&instant) => steps[instant].actor,
        _ => alive[random.below(alive.len())],
    };
    (instant, victim)
}

/// Processes that are alive after these steps.
fn alive(steps: &[Step]) -> Vec<usize> {
    let mut is_alive = [false; ACTORS];
    for step in steps {
        let word = step.word(0) as usize;
        match step.op {
            "begin" | "fork" => is_alive[word] = true,
            "exit" => is_alive[step.actor] = false,
            "kill" if step.actor != TEST => is_alive[word] = false,
            _ => {}
        }
    }
    (0..ACTORS).filter(|at| is_alive[*at]).collect()
}

/// Checks what the peer got in all: for each stream, no more than was written, and an end or a reset.
fn is_right(steps: &[Step], instant: usize, seen: &str) -> Result<(), String> {
    if seen.contains("WRONG") {
        return Err("wrong bytes".to_owned());
    }
    let begun = seen.lines().filter_map(|line| line.split_once(' ')?.0.parse().ok()).max();
    let mut begun = begun.unwrap_or(0).max(instant);
    while begun + 1 < steps.len() {
        begun += 1;
        if !steps[begun].gives_away() {
            break;
        }
    }
    let mut written = HashMap::from([(-1, 0)]);
    for (stream, end) in steps[..=begun].iter().filter_map(Step::writes) {
        let most = written.entry(stream).or_insert(0);
        *most = end.max(*most);
    }
    let left = seen.lines().find_map(|line| line.strip_prefix("-1 4 leave:"));
    for stream in left.ok_or("the peer has ended")?.split(';').filter(|one| !one.is_empty()) {
        let words: Vec<&str> = stream.split(' ').filter(|word| !word.is_empty()).collect();
        let [name, before, more, end] = words[..] else {
            return Err(format!("the peer saw{stream}"));
        };
        let [name, before, more] = [name, before, more].map(|word| word.parse::<i64>().unwrap());
        let most = written.get(&name).copied().unwrap_or(0);
        if before + more > most || !["end", "ECONNRESET"].contains(&end) {
            return Err(format!("the peer saw{stream}, of {most} bytes"));
        }
    }
    Ok(())
}

fn described(steps: &[Step], seen: &str) -> String {
    let mut text = String::new();
    for line in seen.lines() {
        let at = line.split_once(' ').and_then(|(at, _)| at.parse::<usize>().ok());
        let step = at.and_then(|at| steps.get(at)).map(Step::to_string).unwrap_or_default();
        text += &format!("{line}   [{step}]\n");
    }
    text
}
