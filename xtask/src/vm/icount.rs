//! `cargo xtask vm icount`: the costs of the kernel host, as counts, because times mean nothing in an emulated machine. The
//! counting program, hosts/linux/examples/measure, runs in the machine and documents what it counts.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use super::kernel::{self, Kernel};
use super::machine::Wanted;
use super::{Error, Program, built, built_as_tested, session, tools};

/// Figures by name; dots separate the parts of a name.
type Figures = BTreeMap<String, f64>;

/// The counting program, built as for the workspace's tests.
const MEASURE: Program =
    Program { flags: &["--workspace"], package: "wave-linux", kind: "example", name: "measure" };
/// The highest cost of a switch, relative to a switch that a FIFO in BPF decides by itself.
const SWITCH_RATIO_MAX: f64 = 1.5;
/// Boots whose figures are compared.
const BOOTS: usize = 2;
/// Number of cores of the machine with guests, beside the agent's CPU. The kernel's option below turns off their ticks.
const GUEST_CPUS: u32 = 3;
const NO_TICKS: &str = "nohz_full=1-2";
/// Longer than any of these runs takes on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Measures everything, and prints it as a table or as one JSON object.
pub fn run(json: bool) -> Result<ExitCode, Error> {
    tools::install()?;
    let kernel = kernel::cached_or_fetched()?;
    let figures = measured(&kernel).map_err(Error::Machine)?;
    if json {
        println!("{}", to_json(&figures));
    } else {
        print!("{}", to_table(&figures));
    }
    Ok(ExitCode::SUCCESS)
}

fn measured(kernel: &Kernel) -> Result<Figures, String> {
    let program = built("wave-linux", &["build", "--release", "--example", "measure"])?;
    let boots =
        (0..BOOTS).map(|_| switches(kernel, &program)).collect::<Result<Vec<Figures>, _>>()?;
    let mut figures = mean(&boots);
    figures.insert("spread".into(), spread(&boots));
    let [with, without] = guests_in_both(kernel, &program)?;
    for name in ["ticks", "exits", "switches"] {
        figures.insert(format!("kvm.{name}_with"), figure(&with, name)?);
        figures.insert(format!("kvm.{name}_without"), figure(&without, name)?);
    }
    for name in ["cores", "vcpus", "guest_instructions"] {
        figures.insert(format!("kvm.{name}"), figure(&with, name)?);
    }
    Ok(figures)
}

/// As a test: the mechanism's switch keeps its ratio.
pub fn a_switch_is_cheap(kernel: &Kernel) -> Result<(), String> {
    let figures = switches(kernel, &built_as_tested(MEASURE)?)?;
    let ratio = figure(&figures, "switch_instructions_ratio_vs_bpf_fifo")?;
    if ratio <= SWITCH_RATIO_MAX {
        return Ok(());
    }
    let wave = figure(&figures, "wave.switch_instructions")?;
    Err(format!(
        "a switch takes {wave:.0} instructions, {ratio:.3} times those of a FIFO in BPF, and may take \
         {SWITCH_RATIO_MAX} times; `cargo xtask vm icount --json` says which program costs what"
    ))
}

/// As a test: guests do their work under the policy for virtual CPUs, and the cores need no ticks for it.
pub fn guests_finish(kernel: &Kernel) -> Result<(), String> {
    let program = built_as_tested(MEASURE)?;
    let [with, without] = guests_in_both(kernel, &program)?;
    for name in ["ticks", "exits"] {
        let (with, without) = (figure(&with, name)?, figure(&without, name)?);
        if without * 2.0 > with {
            return Err(format!("{without} {name} with ticks off, but {with} with ticks on"));
        }
    }
    Ok(())
}

/// Instructions per wake-up and per switch, from one boot.
fn switches(kernel: &Kernel, program: &str) -> Result<Figures, String> {
    let wanted = Wanted { icount: true, cpus: 1, ..Wanted::default() };
    let mut figures = figures_of(kernel, wanted, &[program, "switches"])?;
    for (name, of, to) in [
        ("switch_instructions_ratio_vs_bpf_fifo", "switch_instructions", "bpf_fifo"),
        ("wakeup_instructions_ratio_vs_bpf_fifo", "wakeup_instructions", "bpf_fifo"),
        ("ratio_vs_eevdf", "switch_instructions", "eevdf"),
    ] {
        let [wave, other] = ["wave", to].map(|who| figure(&figures, &format!("{who}.{of}")));
        let ratio = wave? / other?;
        figures.insert(name.into(), ratio);
    }
    Ok(figures)
}

/// Ticks and exits, with and without ticks on the enclave's cores.
fn guests_in_both(kernel: &Kernel, program: &str) -> Result<[Figures; 2], String> {
    let guests = |append: &[&str]| {
        let append = append.iter().map(ToString::to_string).collect();
        let modules = vec!["kvm-amd".into()];
        let wanted = Wanted { cpus: GUEST_CPUS, append, modules, ..Wanted::default() };
        figures_of(kernel, wanted, &[program, "guests"])
    };
    Ok([guests(&[])?, guests(&[NO_TICKS])?])
}

/// Runs a command in a machine; each line of its output is a name and a number.
fn figures_of(kernel: &Kernel, wanted: Wanted, command: &[&str]) -> Result<Figures, String> {
    let command = command.iter().map(ToString::to_string).collect();
    let wanted = Wanted { silence_max: TIMEOUT, command, ..wanted };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = session::run(kernel, &wanted, &mut out, &mut err);
    let exit_code = outcome.map_err(|error| error.to_string())?.exit_code;
    if exit_code != 0 {
        return Err(format!("exit code {exit_code}: {}", String::from_utf8_lossy(&err).trim()));
    }
    let read = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    let text = String::from_utf8_lossy(&out);
    text.lines().map(|line| read(line).ok_or(format!("not a figure: {line:?}"))).collect()
}

fn figure(figures: &Figures, name: &str) -> Result<f64, String> {
    figures.get(name).copied().ok_or_else(|| format!("the machine did not report {name}"))
}

fn mean(boots: &[Figures]) -> Figures {
    let sum = |name: &String| boots.iter().filter_map(|boot| boot.get(name)).sum::<f64>();
    boots[0].keys().map(|name| (name.clone(), sum(name) / boots.len() as f64)).collect()
}

/// The largest relative difference of a figure of instructions between boots.
fn spread(boots: &[Figures]) -> f64 {
    let named = |name: &&String| {
        name.ends_with(".wakeup_instructions") || name.ends_with(".switch_instructions")
    };
    let names = boots[0].keys().filter(named);
    let of = |name: &String| {
        let values = || boots.iter().filter_map(|boot| boot.get(name).copied());
        let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        (most - least) / least
    };
    names.map(of).fold(0.0, f64::max)
}

/// One object; the parts of a name become nested objects.
fn to_json(figures: &Figures) -> String {
    let mut object = serde_json::json!({});
    for (name, number) in figures {
        let place = name.split('.').fold(&mut object, |place, part| &mut place[part]);
        let rounded = (number * 1e4).round() / 1e4;
        *place = if rounded.fract() == 0.0 { (rounded as u64).into() } else { rounded.into() };
    }
    format!("{object:#}")
}

fn to_table(figures: &Figures) -> String {
    let of = |name: &str| figures.get(name).copied().unwrap_or(f64::NAN);
    let mut text =
        format!("{:24}{:>9}{:>14}{:>9}\n", "instructions", "Wave", "FIFO in BPF", "EEVDF");
    for (what, name) in [("a wake-up", "wakeup"), ("a switch", "switch")] {
        let by = |scheduler: &str| of(&format!("{scheduler}.{name}_instructions"));
        let (wave, fifo, eevdf) = (by("wave"), by("bpf_fifo"), by("eevdf"));
        text += &format!("{what:24}{wave:9.0}{fifo:14.0}{eevdf:9.0}\n");
    }
    let (fifo, eevdf) = (of("switch_instructions_ratio_vs_bpf_fifo"), of("ratio_vs_eevdf"));
    text += &format!("{:24}{:>9}{fifo:14.3}{eevdf:9.3}\n", "Wave's switch, ratio to", "");
    text += &format!("{:24}{:9.0}\n", "its agent, per switch", of("agent_instructions_per_switch"));
    let spread = of("spread") * 100.0;
    text += &format!("two boots differ by {spread:.2} % at most\n\n");
    let (cores, vcpus) = (of("kvm.cores"), of("kvm.vcpus"));
    text += &format!("{:24}{:>9}{:>14}\n", "guests of KVM", "ticks", "no ticks");
    for (what, name) in
        [("timer interrupts", "ticks"), ("exits", "exits"), ("switches", "switches")]
    {
        let [with, without] = ["with", "without"].map(|how| of(&format!("kvm.{name}_{how}")));
        text += &format!("{what:24}{with:9.0}{without:14.0}\n");
    }
    let work = of("kvm.guest_instructions") / 1e6;
    text + &format!("of {vcpus} virtual CPUs on {cores} cores, {work:.0} million instructions\n")
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn figures(of: &[(&str, f64)]) -> Figures {
        of.iter().map(|(name, number)| (name.to_string(), *number)).collect()
    }

    #[test]
    fn parts_of_a_name_are_objects() {
        let text = to_json(&figures(&[("a.b", 1.0), ("a.c.d", 2.5), ("e", 3.0)]));
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, serde_json::json!({"a": {"b": 1, "c": {"d": 2.5}}, "e": 3}));
    }

    #[test]
    fn boots_are_compared_by_their_instructions() {
        let boots = [
            figures(&[("wave.switch_instructions", 100.0), ("ticks", 1.0)]),
            figures(&[("wave.switch_instructions", 102.0), ("ticks", 9.0)]),
        ];
        assert_eq!(mean(&boots)["wave.switch_instructions"], 101.0);
        assert!((spread(&boots) - 0.02).abs() < 1e-9);
    }
}
