//! Meaning of a scenario file: fills in defaults, checks ranges, and checks that sections belong together.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use wave_report::slug;

use toml::Spanned;

use super::defaults;
use super::error::{ScenarioError, line_of};
use super::file::{
    RawClass, RawCompare, RawCrash, RawEnclaves, RawKind, RawRun, RawScenario, RawSearch,
    RawWorkload,
};
use super::model::{
    Chaos, Class, Compare, Crash, Enclaves, Kind, Load, Machine, Run, Scenario, Variant, Workload,
};

mod variants;

pub(super) use variants::{GHZ_MAX, GHZ_MIN, link};

/// Source of the fields, and the known names of policies.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub path: &'a Path,
    pub text: &'a str,
    pub policies: &'a [&'a str],
    /// Where [`Source::within`] notes defaults and ranges, for the reference.
    pub bounds: Option<&'a RefCell<Vec<Bound>>>,
}

/// Default and range of a field, as [`Source::within`] enforces them.
pub struct Bound {
    pub field: String,
    pub default: String,
    pub least: String,
    pub most: String,
}

impl<'a> Source<'a> {
    pub fn new(path: &'a Path, text: &'a str, policies: &'a [&'a str]) -> Self {
        Source { path, text, policies, bounds: None }
    }
}

impl Source<'_> {
    /// Refuses the field at `span`.
    pub(super) fn refuse(&self, span: Range<usize>, message: impl Into<String>) -> ScenarioError {
        ScenarioError::meaning(self.path, line_of(self.text, span.start), message.into())
    }

    /// Returns the value or the default; refuses it outside of the range.
    pub(super) fn within<T: PartialOrd + Display + Copy>(
        &self,
        field: &str,
        value: Option<&Spanned<T>>,
        default: T,
        allowed: std::ops::RangeInclusive<T>,
    ) -> Result<T, ScenarioError> {
        let (least, most) = (allowed.start(), allowed.end());
        if let Some(bounds) = self.bounds {
            let [default, least, most] = [&default, least, most].map(T::to_string);
            bounds.borrow_mut().push(Bound { field: field.to_owned(), default, least, most });
        }
        let Some(value) = value else {
            return Ok(default);
        };
        if allowed.contains(value.get_ref()) {
            return Ok(*value.get_ref());
        }
        let mut value_text = value.get_ref().to_string();
        if value_text.len() > DIGITS_MAX {
            value_text.truncate(DIGITS_MAX);
            value_text.push_str("...");
        }
        let message = format!("`{field}` is {value_text}, expected {least} to {most}");
        Err(self.refuse(value.span(), message))
    }

    pub(super) fn name(&self, written: &Spanned<String>) -> Result<String, ScenarioError> {
        let name = written.get_ref();
        if (1..=NAME_MAX).contains(&name.len()) && slug(name) == *name {
            return Ok(name.clone());
        }
        let most =
            if name.len() > NAME_MAX { format!(", {NAME_MAX} at most") } else { String::new() };
        let message = format!(
            "`name` is \"{name}\", expected lowercase letters, digits and single hyphens{most}"
        );
        Err(self.refuse(written.span(), message))
    }

    /// A variant's name, which names a file of results: distinct from every other variant's.
    pub(super) fn variant_name<'o>(
        &self,
        written: &Spanned<String>,
        mut others: impl Iterator<Item = &'o str>,
    ) -> Result<String, ScenarioError> {
        let name = written.get_ref();
        let file = slug(name);
        if name.len() > NAME_MAX {
            let message =
                format!("`variant.name` has {} bytes, expected {NAME_MAX} at most", name.len());
            return Err(self.refuse(written.span(), message));
        }
        if !file.is_empty() && others.all(|other| slug(other) != file) {
            return Ok(name.clone());
        }
        let message = format!(
            "`variant.name` is \"{name}\", expected letters or digits, different from those of every other variant"
        );
        Err(self.refuse(written.span(), message))
    }

    /// `run.loads_per_second`: one or more, ascending.
    pub(super) fn loads(
        &self,
        loads: &Spanned<Vec<Spanned<f64>>>,
    ) -> Result<Vec<f64>, ScenarioError> {
        let field = "run.loads_per_second";
        if loads.get_ref().len() > LOADS_MAX {
            let message = format!(
                "`{field}` has {} loads, expected {LOADS_MAX} at most",
                loads.get_ref().len()
            );
            return Err(self.refuse(loads.span(), message));
        }
        let mut checked: Vec<f64> = Vec::with_capacity(loads.get_ref().len());
        for load in loads.get_ref() {
            let rate = self.rate(field, load)?;
            if let Some(before) = checked.last().filter(|before| **before >= rate) {
                let message =
                    format!("`{field}` has {rate} after {before}, expected ascending loads");
                return Err(self.refuse(load.span(), message));
            }
            checked.push(rate);
        }
        if checked.is_empty() {
            let message = format!("`{field}` is empty, expected at least one load");
            return Err(self.refuse(loads.span(), message));
        }
        Ok(checked)
    }

    /// A rate in requests per second.
    pub(super) fn rate(&self, field: &str, value: &Spanned<f64>) -> Result<f64, ScenarioError> {
        self.positive(field, value)?;
        self.within(field, Some(value), RATE_MIN, RATE_MIN..=RATE_MAX)
    }

    /// Refuses more requests in a point of `seconds` than memory and patience allow.
    pub(super) fn few_requests(
        &self,
        field: &str,
        rate: f64,
        seconds: f64,
        span: Range<usize>,
    ) -> Result<(), ScenarioError> {
        if rate * seconds <= REQUESTS_MAX {
            return Ok(());
        }
        let message = format!(
            "`{field}` is {rate}, for {seconds} s: {:e} requests in one point, expected {REQUESTS_MAX:e} at most",
            rate * seconds
        );
        Err(self.refuse(span, message))
    }

    /// Checks that the number is above 0.
    fn positive(&self, field: &str, value: &Spanned<f64>) -> Result<f64, ScenarioError> {
        let number = *value.get_ref();
        if number > 0.0 && number.is_finite() {
            return Ok(number);
        }
        Err(self.refuse(value.span(), format!("`{field}` is {number}, expected a number above 0")))
    }
}

/// Maximum length of a name, because names become file names.
const NAME_MAX: usize = 100;
/// Maximum number of digits of a value shown.
const DIGITS_MAX: usize = 24;
const LOADS_MAX: usize = 1_000;
/// Maximum requests per second: more than any generator here makes, or any paper reports.
const RATE_MAX: f64 = 1e8;
/// Minimum requests per second: fewer make no point.
const RATE_MIN: f64 = 0.001;
/// Maximum number of requests of one point: a run with crashes remembers each.
const REQUESTS_MAX: f64 = 1e9;
/// Maximum length of a point. Longer ones are many points.
const SECONDS_MAX: f64 = 3_600.0;
/// What the load of a ladder must be.
const LADDER_LOAD: &str = "kind = \"ladder\" needs one load in `run.loads_per_second`, above every variant's capacity: \
                           a ladder compares throughputs under overload, and takes no [run.search]";

/// The fewest rounds that give an interval.
const ROUNDS_MIN: u32 = 6;
/// Minimum time measured.
const SECONDS_MIN: f64 = 0.001;
/// Maximum length of a run with crashes: a day.
const CRASHES_SECONDS_MAX: f64 = 86_400.0;
/// Minimum time between two kills: the watchdog notices a stopped agent after 20 ms, and the next one starts.
const EVERY_MS_MIN: u64 = 1;
const WEIGHT_MAX: f64 = 1e9;

/// Fills in defaults and checks `raw`.
pub(super) fn check(raw: RawScenario, source: Source<'_>) -> Result<Scenario, ScenarioError> {
    let name = source.name(&raw.name)?;
    let kind = kind(&raw, source)?;
    let mut run = run(raw.run.as_ref(), raw.crash.as_ref(), &kind, raw.kind.span(), source)?;
    let compared = raw.run.and_then(|run| run.into_inner().compare);
    let workload = workload(raw.workload.unwrap_or_default(), source)?;
    let host = raw.host.unwrap_or_default();
    let machine = machine(host.machine.as_ref(), source)?;
    let variants = variants::check(raw.variant, host, &kind, &raw.kind, source)?;
    run.compare =
        compared.map(|compared| compare(&compared, &kind, &variants, source)).transpose()?;
    Ok(Scenario {
        name,
        description: raw.description.unwrap_or_default(),
        kind,
        workload,
        run,
        machine,
        variants,
    })
}

/// A relative path starts from the scenario's directory.
fn machine(
    written: Option<&Spanned<String>>,
    source: Source<'_>,
) -> Result<Machine, ScenarioError> {
    let Some(written) = written else {
        return Ok(Machine::Builtin(defaults::MACHINE.to_owned()));
    };
    let name = written.get_ref();
    if name.ends_with(".toml") {
        let directory = source.path.parent().unwrap_or(source.path);
        return Ok(Machine::File(directory.join(name)));
    }
    if wave_sim::machine::Machine::builtin_names().any(|known| known == name) {
        return Ok(Machine::Builtin(name.clone()));
    }
    let names: Vec<String> =
        wave_sim::machine::Machine::builtin_names().map(|name| format!("`{name}`")).collect();
    let message = format!(
        "`host.machine` is \"{name}\", expected one of {}, or a path to a .toml file",
        names.join(", ")
    );
    Err(source.refuse(written.span(), message))
}

fn kind(raw: &RawScenario, source: Source<'_>) -> Result<Kind, ScenarioError> {
    let written = *raw.kind.get_ref();
    if let Some(crash) = raw.crash.as_ref().filter(|_| written != RawKind::Crash) {
        return Err(source.refuse(crash.span(), "[crash] has a meaning only with kind = \"crash\""));
    }
    if let Some(enclaves) = raw.enclaves.as_ref().filter(|_| written != RawKind::Enclaves) {
        return Err(source
            .refuse(enclaves.span(), "[enclaves] has a meaning only with kind = \"enclaves\""));
    }
    if let Some(chaos) = raw.chaos.as_ref().filter(|_| written != RawKind::Chaos) {
        return Err(source.refuse(chaos.span(), "[chaos] has a meaning only with kind = \"chaos\""));
    }
    match (written, &raw.crash, &raw.enclaves) {
        (RawKind::Load, ..) => Ok(Kind::Load),
        (RawKind::Ladder, ..) => Ok(Kind::Ladder),
        (RawKind::Crash, Some(crash), _) => crash_kind(crash.get_ref(), source),
        (RawKind::Crash, None, _) => Err(source.refuse(
            raw.kind.span(),
            "kind = \"crash\" needs a table [crash] with `load_per_second`",
        )),
        (RawKind::Enclaves, _, enclaves) => {
            enclaves_kind(enclaves.as_ref().map(Spanned::get_ref), source)
        }
        (RawKind::Chaos, ..) => {
            let threads = raw.chaos.as_ref().and_then(|chaos| chaos.get_ref().threads.as_ref());
            let default = defaults::CHAOS_THREADS;
            let threads = source.within("chaos.threads", threads, default, 1..=4096)?;
            let classes = raw.workload.as_ref().and_then(|workload| workload.classes.as_ref());
            let is_range = |class: &Spanned<RawClass>| {
                class.get_ref().operation == Some(super::model::Operation::Range)
            };
            if !classes.is_some_and(|classes| classes.get_ref().iter().any(is_range)) {
                let message = "kind = \"chaos\" scans: it needs a class with operation = \"range\"";
                return Err(source.refuse(raw.kind.span(), message));
            }
            Ok(Kind::Chaos(Chaos { threads }))
        }
    }
}

fn crash_kind(raw: &RawCrash, source: Source<'_>) -> Result<Kind, ScenarioError> {
    let kills = source.within("crash.kills", raw.kills.as_ref(), defaults::KILLS, 1..=100_000)?;
    let every_ms = source.within(
        "crash.every_ms",
        raw.every_ms.as_ref(),
        defaults::EVERY_MS,
        EVERY_MS_MIN..=3_600_000,
    )?;
    let seconds = f64::from(kills) * every_ms as f64 / 1e3;
    if seconds > CRASHES_SECONDS_MAX {
        let at = raw.every_ms.as_ref().map(Spanned::span);
        let at = raw.kills.as_ref().map(Spanned::span).or(at).unwrap_or(0..0);
        let message = format!(
            "`crash.kills` times `crash.every_ms` is {seconds} s, expected {CRASHES_SECONDS_MAX} s at most"
        );
        return Err(source.refuse(at, message));
    }
    Ok(Kind::Crash(Crash { kills, every_ms }))
}

fn enclaves_kind(raw: Option<&RawEnclaves>, source: Source<'_>) -> Result<Kind, ScenarioError> {
    let count = raw.and_then(|raw| raw.count.as_ref());
    let count = source.within("enclaves.count", count, defaults::ENCLAVES, 1..=64)?;
    Ok(Kind::Enclaves(Enclaves { count }))
}

fn workload(raw: RawWorkload, source: Source<'_>) -> Result<Workload, ScenarioError> {
    let keys =
        source.within("workload.keys", raw.keys.as_ref(), defaults::KEYS, 1..=1_000_000_000)?;
    let value_bytes = source.within(
        "workload.value_bytes",
        raw.value_bytes.as_ref(),
        defaults::VALUE_BYTES,
        1..=1_048_576,
    )?;
    let service_us = source.within(
        "workload.service_us",
        raw.service_us.as_ref(),
        defaults::SERVICE_US,
        0.0..=1_000_000.0,
    )?;
    let classes = match raw.classes {
        None => defaults::classes(service_us),
        Some(classes) if classes.get_ref().is_empty() => {
            return Err(source.refuse(
                classes.span(),
                "`workload.classes` is empty, expected at least one class",
            ));
        }
        Some(classes) => {
            let mut checked: Vec<Class> = Vec::with_capacity(classes.get_ref().len());
            for raw in classes.get_ref() {
                let class = class(raw.get_ref(), service_us, source)?;
                if class.name.is_empty() || checked.iter().any(|other| other.name == class.name) {
                    let message = format!(
                        "`workload.classes` has the name \"{}\", expected a distinct name for each class",
                        class.name
                    );
                    return Err(source.refuse(raw.span(), message));
                }
                checked.push(class);
            }
            checked
        }
    };
    Ok(Workload { keys, value_bytes, classes })
}

fn class(raw: &RawClass, service_us: f64, source: Source<'_>) -> Result<Class, ScenarioError> {
    let field = "workload.classes.weight";
    source.positive(field, &raw.weight)?;
    let weight = source.within(field, Some(&raw.weight), 1.0, 1.0 / WEIGHT_MAX..=WEIGHT_MAX)?;
    let service_us = source.within(
        "workload.classes.service_us",
        raw.service_us.as_ref(),
        service_us,
        0.0..=1_000_000.0,
    )?;
    let operation = raw.operation.unwrap_or_default();
    Ok(Class { name: raw.name.clone(), weight, service_us, operation })
}

fn run(
    raw: Option<&Spanned<RawRun>>,
    crash: Option<&Spanned<RawCrash>>,
    kind: &Kind,
    kind_span: Range<usize>,
    source: Source<'_>,
) -> Result<Run, ScenarioError> {
    let span = raw.map_or(kind_span, Spanned::span);
    let absent = RawRun::default();
    let raw = raw.map_or(&absent, Spanned::get_ref);
    let warmup_seconds = raw.warmup_seconds.as_ref();
    let warmup = source.within(
        "run.warmup_seconds",
        warmup_seconds,
        defaults::WARMUP_SECONDS,
        0.0..=3600.0,
    )?;
    let seed = raw.seed.unwrap_or(defaults::SEED);

    if let (Kind::Crash(times), Some(crash)) = (kind, crash) {
        let unused = [
            ("run.seconds", raw.seconds.as_ref().map(Spanned::span)),
            ("run.loads_per_second", raw.loads_per_second.as_ref().map(Spanned::span)),
            ("run.rounds", raw.rounds.as_ref().map(Spanned::span)),
            ("run.refine", raw.refine.as_ref().map(Spanned::span)),
            ("run.search", raw.search.as_ref().map(Spanned::span)),
            ("run.equal_cores", raw.equal_cores.as_ref().map(Spanned::span)),
        ];
        if let Some((field, Some(span))) = unused.into_iter().find(|(_, span)| span.is_some()) {
            let message = format!(
                "`{field}` has no meaning with kind = \"crash\": [crash] has its own length and load"
            );
            return Err(source.refuse(span, message));
        }
        let written = &crash.get_ref().load_per_second;
        let load = source.rate("crash.load_per_second", written)?;
        let seconds = warmup + f64::from(times.kills) * times.every_ms as f64 / 1e3;
        source.few_requests("crash.load_per_second", load, seconds, written.span())?;
        let load = Load::Each(vec![load]);
        return Ok(Run {
            seconds,
            warmup_seconds: warmup,
            seed,
            load,
            rounds: 0,
            refine: 0,
            compare: None,
            equal_cores: true,
        });
    }

    let seconds = match &raw.seconds {
        Some(seconds) => {
            source.positive("run.seconds", seconds)?;
            let allowed = SECONDS_MIN..=SECONDS_MAX;
            source.within("run.seconds", Some(seconds), defaults::SECONDS, allowed)?
        }
        None => defaults::SECONDS,
    };
    if warmup > seconds - SECONDS_MIN {
        let at =
            warmup_seconds.map(Spanned::span).or_else(|| raw.seconds.as_ref().map(Spanned::span));
        let message = format!(
            "`run.warmup_seconds` is {warmup}, expected less than `run.seconds`, which is {seconds}"
        );
        return Err(source.refuse(at.unwrap_or(span), message));
    }
    let usual = if *kind == Kind::Ladder { defaults::LADDER_ROUNDS } else { 0 };
    let rounds = self::rounds(raw.rounds.as_ref(), usual, source)?;
    // A simulated point is as long as all rounds.
    let length = seconds * f64::from(rounds.max(1));
    let load = match (&raw.loads_per_second, &raw.search) {
        (None, None) if matches!(kind, Kind::Chaos(_)) => Load::Each(Vec::new()),
        (Some(_), _) | (_, Some(_)) if matches!(kind, Kind::Chaos(_)) => {
            let message = "[run] has a load, which has no meaning with kind = \"chaos\": its threads never rest";
            return Err(source.refuse(span, message));
        }
        (_, Some(search)) if *kind == Kind::Ladder => {
            return Err(source.refuse(search.span(), LADDER_LOAD));
        }
        (Some(_), Some(search)) => {
            return Err(source.refuse(
                search.span(),
                "[run] has both `loads_per_second` and [run.search], expected one of them",
            ));
        }
        (None, None) if *kind == Kind::Ladder => return Err(source.refuse(span, LADDER_LOAD)),
        (None, None) => {
            return Err(
                source.refuse(span, "[run] needs `loads_per_second` or a table [run.search]")
            );
        }
        (Some(loads), None) if *kind == Kind::Ladder && loads.get_ref().len() != 1 => {
            return Err(source.refuse(loads.span(), LADDER_LOAD));
        }
        (None, Some(search)) if matches!(kind, Kind::Enclaves(_)) => {
            let message = "[run.search] with kind = \"enclaves\", expected `run.loads_per_second`";
            return Err(source.refuse(search.span(), message));
        }
        (Some(written), None) => {
            let loads = source.loads(written)?;
            let highest = loads.last().copied().unwrap_or(0.0);
            source.few_requests("run.loads_per_second", highest, length, written.span())?;
            Load::Each(loads)
        }
        (None, Some(search)) => self::search(search.get_ref(), length, source)?,
    };
    if let Some(written) = raw.rounds.as_ref().filter(|_| rounds > 0)
        && !matches!(kind, Kind::Load | Kind::Ladder)
    {
        let message = "`run.rounds` has a meaning only with kind = \"load\" or kind = \"ladder\"";
        return Err(source.refuse(written.span(), message));
    }
    let refine = source.within("run.refine", raw.refine.as_ref(), defaults::REFINE, 0..=16)?;
    if let Some(written) = &raw.refine
        && !matches!((kind, &load), (Kind::Load, Load::Each(_)))
    {
        let message = "`run.refine` has a meaning only with kind = \"load\" and `loads_per_second`";
        return Err(source.refuse(written.span(), message));
    }
    if let Some(written) = &raw.equal_cores
        && *kind != Kind::Load
    {
        let message = "`run.equal_cores` has a meaning only with kind = \"load\"";
        return Err(source.refuse(written.span(), message));
    }
    let equal_cores = raw.equal_cores.as_ref().is_none_or(|written| *written.get_ref());
    Ok(Run {
        seconds,
        warmup_seconds: warmup,
        seed,
        load,
        rounds,
        refine,
        compare: None,
        equal_cores,
    })
}

/// `run.rounds`, by default the number `usual`. 0 is a number only where that is the default.
pub(super) fn rounds(
    written: Option<&Spanned<u32>>,
    usual: u32,
    source: Source<'_>,
) -> Result<u32, ScenarioError> {
    let rounds = source.within("run.rounds", written, usual, 0..=10_000)?;
    match written {
        Some(written) if rounds < ROUNDS_MIN && rounds != usual => {
            let or_none = if usual == 0 { "0, or " } else { "" };
            let message = format!(
                "`run.rounds` is {rounds}, expected {or_none}{ROUNDS_MIN} or more: fewer rounds give no interval"
            );
            Err(source.refuse(written.span(), message))
        }
        _ => Ok(rounds),
    }
}

fn compare(
    raw: &Spanned<RawCompare>,
    kind: &Kind,
    variants: &[Variant],
    source: Source<'_>,
) -> Result<Compare, ScenarioError> {
    if *kind != Kind::Load {
        let message = "[run.compare] has a meaning only with kind = \"load\"";
        return Err(source.refuse(raw.span(), message));
    }
    let RawCompare { with, at } = raw.get_ref();
    let name = with.get_ref();
    if !variants.iter().any(|variant| variant.name == *name) {
        let message = format!("`run.compare.with` is \"{name}\", expected the name of a variant");
        return Err(source.refuse(with.span(), message));
    }
    let at = source.within("run.compare.at", at.as_ref(), defaults::COMPARE_AT, 0.01..=1.0)?;
    Ok(Compare { with: name.clone(), at })
}

fn search(raw: &RawSearch, seconds: f64, source: Source<'_>) -> Result<Load, ScenarioError> {
    let low = source.rate("run.search.low", &raw.low)?;
    let high = source.rate("run.search.high", &raw.high)?;
    source.few_requests("run.search.high", high, seconds, raw.high.span())?;
    if low >= high {
        let message = format!(
            "`run.search.high` is {high}, expected more than `run.search.low`, which is {low}"
        );
        return Err(source.refuse(raw.high.span(), message));
    }
    let probes =
        source.within("run.search.probes", raw.probes.as_ref(), defaults::PROBES, 2..=64)?;
    Ok(Load::Search { low, high, probes })
}
