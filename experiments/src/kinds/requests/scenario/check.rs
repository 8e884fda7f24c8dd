//! Meaning of a scenario file: checks that sections belong together, and fills in what depends on others.

use wave_scenario::{ScenarioError, Source};
use wave_sim::machine;

use super::form::{Form, KindName, Operation, Run, SECONDS_MIN, Workload};
use super::{Crash, Kind, Machine, Scenario, variants};
use crate::ground::fields::{few_requests, loads, rounds};

/// `run.rounds` of a ladder, unless the file says otherwise.
const LADDER_ROUNDS: u32 = 24;
/// Maximum length of a run with crashes: a day.
const CRASHES_SECONDS_MAX: f64 = 86_400.0;
/// What the load of a ladder must be.
const LADDER_LOAD: &str = "kind = \"ladder\" needs one load in `run.loads_per_second`, above every variant's capacity: \
                           a ladder compares throughputs under overload, and takes no [run.search]";

/// Reads the scenario. `policies` are the names of the scheduling agent's policies; any other name is refused.
///
/// # Errors
/// Says which file, which line and why. All are mistakes of the file's author, with exit code 2.
pub fn read(source: &Source<'_>, policies: &[&str]) -> Result<Scenario, ScenarioError> {
    let mut form: Form = source.read()?;
    let kind = kind(&form, source)?;
    run(&mut form.run, kind, source)?;
    workload(&form.workload, source)?;
    let machine = machine(&form.host.machine, source)?;
    let variants = variants::check(&form, kind, source, policies)?;
    if let Some(compare) = &form.run.compare
        && !variants.iter().any(|variant| variant.name == compare.with)
    {
        let name = &compare.with;
        let why = format!("`run.compare.with` is \"{name}\", expected the name of a variant");
        return Err(source.refuse("run.compare.with", why));
    }
    let Form { name, description, mut workload, run, .. } = form;
    for class in &mut workload.classes {
        class.service_us.get_or_insert(workload.service_us);
    }
    // Every class has its own now: the identity of a point does not depend on what none of them takes.
    workload.service_us = Workload::default().service_us;
    Ok(Scenario { name: name.into(), description, kind, workload, run, machine, variants })
}

/// A relative path starts from the scenario's directory.
fn machine(name: &str, source: &Source<'_>) -> Result<Machine, ScenarioError> {
    if name.ends_with(".toml") {
        let directory = source.path.parent().unwrap_or(source.path);
        return Ok(Machine::File(directory.join(name)));
    }
    if machine::Machine::builtin_names().any(|known| known == name) {
        return Ok(Machine::Builtin(name.to_owned()));
    }
    let names: Vec<String> =
        machine::Machine::builtin_names().map(|name| format!("`{name}`")).collect();
    let why = format!(
        "`host.machine` is \"{name}\", expected one of {}, or a path to a .toml file",
        names.join(", ")
    );
    Err(source.refuse("host.machine", why))
}

fn kind(form: &Form, source: &Source<'_>) -> Result<Kind, ScenarioError> {
    for (table, kind) in
        [("crash", KindName::Crash), ("enclaves", KindName::Enclaves), ("chaos", KindName::Chaos)]
    {
        if source.has(table) && form.kind != kind {
            let why = format!("[{table}] has a meaning only with kind = \"{table}\"");
            return Err(source.refuse(table, why));
        }
    }
    match (form.kind, form.crash) {
        (KindName::Load, _) => Ok(Kind::Load),
        (KindName::Ladder, _) => Ok(Kind::Ladder),
        (KindName::Crash, Some(crash)) => Ok(Kind::Crash(crash)),
        (KindName::Crash, None) => {
            let why = "kind = \"crash\" needs a table [crash] with `load_per_second`";
            Err(source.refuse("kind", why))
        }
        (KindName::Enclaves, _) => Ok(Kind::Enclaves(form.enclaves.count)),
        (KindName::Chaos, _) => {
            let mut classes = form.workload.classes.iter();
            if !classes.any(|class| class.operation == Operation::Range) {
                let why = "kind = \"chaos\" scans: it needs a class with operation = \"range\"";
                return Err(source.refuse("kind", why));
            }
            Ok(Kind::Chaos(form.chaos.threads))
        }
    }
}

fn workload(workload: &Workload, source: &Source<'_>) -> Result<(), ScenarioError> {
    let classes = &workload.classes;
    if classes.is_empty() {
        let why = "`workload.classes` is empty, expected at least one class";
        return Err(source.refuse("workload.classes", why));
    }
    for (at, class) in classes.iter().enumerate() {
        let name = &class.name;
        if name.is_empty() || classes[..at].iter().any(|other| other.name == *name) {
            let why = format!(
                "`workload.classes` has the name \"{name}\", expected a distinct name for each class"
            );
            return Err(source.refuse(&format!("workload.classes[{at}]"), why));
        }
    }
    Ok(())
}

fn run(run: &mut Run, kind: Kind, source: &Source<'_>) -> Result<(), ScenarioError> {
    if let Kind::Crash(crash) = kind {
        return crash_run(run, crash, source);
    }
    if run.warmup_seconds > run.seconds - SECONDS_MIN {
        let at = ["run.warmup_seconds", "run.seconds", "run"];
        let at = at.into_iter().find(|field| source.has(field)).unwrap_or("kind");
        let why = format!(
            "`run.warmup_seconds` is {}, expected less than `run.seconds`, which is {}",
            run.warmup_seconds, run.seconds
        );
        return Err(source.refuse(at, why));
    }
    let usual = if kind == Kind::Ladder { LADDER_ROUNDS } else { 0 };
    if !source.has("run.rounds") {
        run.rounds = usual;
    }
    rounds(source, run.rounds, usual)?;
    // A simulated point is as long as all rounds.
    let length = run.seconds * f64::from(run.rounds.max(1));
    let at = if source.has("run") { "run" } else { "kind" };
    let has_loads = source.has("run.loads_per_second");
    match (&run.search, kind) {
        (None, Kind::Chaos(_)) if !has_loads => {}
        (_, Kind::Chaos(_)) => {
            let why = "[run] has a load, which has no meaning with kind = \"chaos\": its threads never rest";
            return Err(source.refuse(at, why));
        }
        (Some(_), Kind::Ladder) => return Err(source.refuse("run.search", LADDER_LOAD)),
        (Some(_), _) if has_loads => {
            let why = "[run] has both `loads_per_second` and [run.search], expected one of them";
            return Err(source.refuse("run.search", why));
        }
        (None, Kind::Ladder) if run.loads_per_second.len() != 1 => {
            let at = if has_loads { "run.loads_per_second" } else { at };
            return Err(source.refuse(at, LADDER_LOAD));
        }
        (Some(_), Kind::Enclaves(_)) => {
            let why = "[run.search] with kind = \"enclaves\", expected `run.loads_per_second`";
            return Err(source.refuse("run.search", why));
        }
        (None, _) if !has_loads => {
            let or_search = match kind {
                Kind::Enclaves(_) => "",
                _ => " or a table [run.search]",
            };
            return Err(source.refuse(at, format!("[run] needs `loads_per_second`{or_search}")));
        }
        (None, _) => loads(source, &run.loads_per_second, length)?,
        (Some(search), _) => {
            few_requests(source, "run.search.high", search.high, length)?;
            if search.low >= search.high {
                let why = format!(
                    "`run.search.high` is {}, expected more than `run.search.low`, which is {}",
                    search.high, search.low
                );
                return Err(source.refuse("run.search.high", why));
            }
        }
    }
    if !matches!(kind, Kind::Load | Kind::Ladder) && run.rounds > 0 {
        let why = "has a meaning only with kind = \"load\" or kind = \"ladder\"";
        source.without(&["run.rounds"], why)?;
    }
    if kind != Kind::Load || run.search.is_some() {
        let why = "has a meaning only with kind = \"load\" and `loads_per_second`";
        source.without(&["run.refine"], why)?;
    }
    if kind != Kind::Load {
        let why = "has a meaning only with kind = \"load\"";
        source.without(&["run.equal_cores", "run.compare"], why)?;
    }
    Ok(())
}

/// A run with crashes is as long as its kills.
fn crash_run(run: &mut Run, crash: Crash, source: &Source<'_>) -> Result<(), ScenarioError> {
    let own =
        ["seconds", "loads_per_second", "rounds", "refine", "search", "equal_cores", "compare"];
    let own = own.map(|field| format!("run.{field}"));
    let why = "has no meaning with kind = \"crash\": [crash] has its own length and load";
    source.without(&own.each_ref().map(String::as_str), why)?;
    let seconds = f64::from(crash.kills) * crash.every_ms as f64 / 1e3;
    if seconds > CRASHES_SECONDS_MAX {
        let at = if source.has("crash.kills") { "crash.kills" } else { "crash.every_ms" };
        let why = format!(
            "`crash.kills` times `crash.every_ms` is {seconds} s, expected {CRASHES_SECONDS_MAX} s at most"
        );
        return Err(source.refuse(at, why));
    }
    run.seconds = run.warmup_seconds + seconds;
    run.loads_per_second = vec![crash.load_per_second];
    few_requests(source, "crash.load_per_second", crash.load_per_second, run.seconds)
}
