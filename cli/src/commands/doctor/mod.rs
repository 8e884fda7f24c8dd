//! `wave doctor`: what this machine can run, and why it cannot run the rest.

mod remedies;

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde_json::json;
use wave_links::socket::Listener;
use wave_linux::memory::{AccessBits, Pressure, swap_state};
use wave_linux::record::{Recorder, Scope};
use wave_process::{cpus, places};
use wave_wires::{Tap, TapOptions};
use wave_workloads::rocksdb::Database;

use remedies::Remedies;
use wave_apps::machine;
use wave_experiments::ground::seating;
use wave_scenario::size;
use wave_terminal::{counted, out};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave doctor
  wave doctor --json

Exit codes: 0; 3 if nothing at all can run here.")]
pub struct DoctorArgs {
    /// Print one JSON object instead of a list.
    #[arg(long)]
    json: bool,
}

/// Purpose of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing runs without it.
    Everything,
    /// `wave run` needs it.
    Scenarios,
    /// Figures are better with it.
    Better,
    /// `wave record` needs it.
    Recordings,
    /// `wave run --host linux` needs it.
    Kernel,
    /// Scheduling threads of virtual machines needs it.
    Guests,
    /// `wave run --device` needs it.
    Devices,
    /// `wave memory run` needs it.
    Memory,
    /// `wave tcp up` needs it.
    Tcp,
    /// `wave memory run` is better with it.
    SaferMemory,
    /// Confinement of agents and hosts needs it.
    Confinement,
}

impl Need {
    fn name(self) -> &'static str {
        match self {
            Need::Everything => "everything",
            Need::Scenarios => "wave run",
            Need::Better => "better figures",
            Need::Recordings => "wave record",
            Need::Kernel => "wave run --host linux",
            Need::Guests => "scheduling virtual machines",
            Need::Devices => "wave run --device",
            Need::Memory => "wave memory run",
            Need::Tcp => "wave tcp up",
            Need::SaferMemory => "holding back in wave memory run",
            Need::Confinement => "confining agents and hosts",
        }
    }
}

#[derive(Debug)]
struct Check {
    name: &'static str,
    need: Need,
    /// The text to show: what was found, or why it is missing.
    found: Result<String, String>,
    /// Command that supplies it if it is missing, if there is one.
    remedy: Option<String>,
}

pub fn execute(args: &DoctorArgs) -> ExitCode {
    let remedies = Remedies::here();
    let checks = checks(&remedies);
    let missing = |need| checks.iter().any(|check| check.need == need && check.found.is_err());
    let nothing_runs = missing(Need::Everything);
    let scenarios_run = !nothing_runs && !missing(Need::Scenarios);
    if args.json {
        let list: Vec<_> = checks
            .iter()
            .map(|check| {
                json!({
                    "name": check.name,
                    "for": check.need.name(),
                    "ok": check.found.is_ok(),
                    "found": check.found.as_ref().ok(),
                    "missing": check.found.as_ref().err(),
                    "remedy": check.remedy.as_ref().filter(|_| check.found.is_err()),
                })
            })
            .collect();
        let machine = machine::machine(cpus::allowed().map_or(0, |cpus| cpus.len()));
        let all = json!({ "scenarios_run": scenarios_run, "machine": machine, "checks": list });
        out!("{all}");
    } else {
        for check in &checks {
            match &check.found {
                Ok(found) => out!("ok       {:22} {found}", check.name),
                Err(why) => {
                    out!("missing  {:22} {why} (for {})", check.name, check.need.name());
                    if let Some(remedy) = &check.remedy {
                        out!("         {:22} type: {remedy}", "");
                    }
                }
            }
        }
        let verdict = match (nothing_runs, scenarios_run) {
            (true, _) => "Nothing can run here: see what is missing above.".to_owned(),
            (_, false) => {
                "Agents and hosts run; scenarios do not: see what is missing above.".to_owned()
            }
            _ => format!("Scenarios run: try `{}`.", remedies.scenario()),
        };
        out!("\n{verdict}");
    }
    if nothing_runs { ExitCode::from(3) } else { ExitCode::SUCCESS }
}

fn checks(remedies: &Remedies) -> Vec<Check> {
    let check = |name, need, found, remedy| Check { name, need, found, remedy };
    let type_this = |command: &str| Some(command.to_owned());
    let again = || remedies.as_root("wave doctor");
    let cpus_allowed = cpus::allowed().map_or(0, |cpus| cpus.len());
    let groups = iommu_groups();
    let kernel = wave_confine::Kernel::ask();
    vec![
        check(
            "kernel",
            Need::Everything,
            release(),
            type_this("upgrade to Debian 12 or later (Linux 6.1)"),
        ),
        check("sealed shared memory", Need::Everything, sealed_memory(), type_this("dmesg | tail")),
        check("eventfd doorbells", Need::Everything, doorbells(), type_this("ulimit -n 4096")),
        check(
            "Unix sockets",
            Need::Everything,
            sockets(),
            type_this("export TMPDIR=/a/directory/of/yours"),
        ),
        check("pinning threads", Need::Scenarios, pinning(), type_this("taskset -pc $$")),
        check("RocksDB", Need::Scenarios, rocksdb(), remedies.rocksdb()),
        check("a CPU for each", Need::Better, cpus(), remedies.cpus(cpus_allowed)),
        check(
            "sched_ext",
            Need::Kernel,
            present("/sys/kernel/sched_ext", "not in this kernel; Linux 6.13 or later may have it"),
            remedies.other_kernel(),
        ),
        check(
            "the kernel's types",
            Need::Kernel,
            present(
                "/sys/kernel/btf/vmlinux",
                "the kernel was built without CONFIG_DEBUG_INFO_BTF",
            ),
            remedies.other_kernel(),
        ),
        check("KVM", Need::Guests, present("/dev/kvm", "no virtual machines here"), remedies.kvm()),
        check("VFIO behind an IOMMU", Need::Devices, vfio(groups), remedies.vfio(groups > 0)),
        check("root", Need::Kernel, root(), type_this("sudo wave run --host linux -- COMMAND")),
        check("recording by BPF", Need::Recordings, recording(), again()),
        check("TAP devices", Need::Tcp, tap(), remedies.tap()),
        check("packet sockets", Need::Tcp, packet_socket(), again()),
        check("accessed bits", Need::Memory, accessed_bits(), again()),
        check(
            "swap",
            Need::Memory,
            swap(),
            type_this("sudo wave memory run --zram 1GiB --pid PID"),
        ),
        check("memory pressure (PSI)", Need::SaferMemory, pressure(), remedies.pressure()),
        check("seccomp", Need::Confinement, found(kernel.seccomp), None),
        check("Landlock", Need::Confinement, found(kernel.landlock), None),
    ]
}

/// Whether the kernel supports one of the means of confinement.
fn found(supported: wave_confine::Supported) -> Result<String, String> {
    match supported.is_there {
        true => Ok(supported.about),
        false => Err(supported.about),
    }
}

/// Creates a TAP device and removes it at once.
fn tap() -> Result<String, String> {
    Tap::open(&TapOptions::new("wavedoctor%d"))
        .map(|_| "created one".to_owned())
        .map_err(|error| error.to_string())
}

/// Opens a packet socket, as `wave tcp up --interface` does. It receives no frames.
fn packet_socket() -> Result<String, String> {
    let (family, kind) = (rustix::net::AddressFamily::PACKET, rustix::net::SocketType::RAW);
    rustix::net::socket(family, kind, None)
        .map(|_| "opened one".to_owned())
        .map_err(|error| format!("needs CAP_NET_RAW: {error}"))
}

/// Tries each backend on this process. Runs use the first that works.
fn accessed_bits() -> Result<String, String> {
    let tried = AccessBits::probe();
    let works: Vec<String> = tried
        .iter()
        .filter(|(_, result)| result.is_ok())
        .map(|(backend, _)| format!("{} ({backend})", backend.name()))
        .collect();
    let fails =
        || tried.iter().filter_map(|(backend, result)| Some((backend, result.as_ref().err()?)));
    let reasons: Vec<String> =
        fails().map(|(backend, why)| format!("not {}: {why}", backend.name())).collect();
    match works.as_slice() {
        [] => Err(reasons.join("; ")),
        [first, rest @ ..] => {
            let others =
                if rest.is_empty() { String::new() } else { format!("; also {}", rest.join(", ")) };
            let reasons = if reasons.is_empty() {
                String::new()
            } else {
                format!("; {}", reasons.join("; "))
            };
            Ok(format!("{first} will be used{others}{reasons}"))
        }
    }
}

fn swap() -> Result<String, String> {
    let state = swap_state().map_err(|error| format!("/proc/swaps: {error}"))?;
    match state.devices.as_slice() {
        [] => Err("none, so nothing can be paged out".to_owned()),
        devices => {
            let names: Vec<String> =
                devices.iter().map(|device| device.path.display().to_string()).collect();
            let (free, all) = (size::show(state.free_bytes), size::show(state.total_bytes));
            Ok(format!("{free} free of {all} ({})", names.join(", ")))
        }
    }
}

fn pressure() -> Result<String, String> {
    let pressure = Pressure::of_machine().ok_or("the kernel does not report it")?;
    Ok(format!("some task waited for memory {:.1}% of the last 10 s", pressure.some.avg10_percent))
}

/// Number of device groups behind an IOMMU.
fn iommu_groups() -> usize {
    std::fs::read_dir("/sys/kernel/iommu_groups").map_or(0, Iterator::count)
}

fn vfio(groups: usize) -> Result<String, String> {
    if groups == 0 {
        return Err("no device is behind an IOMMU".to_owned());
    }
    present("/sys/bus/pci/drivers/vfio-pci", "the driver vfio-pci is not loaded")
        .map(|_| counted(groups, "group") + " of devices")
}

fn recording() -> Result<String, String> {
    let recorder = Recorder::start(Scope::Children).map_err(|error| error.to_string())?;
    drop(recorder);
    Ok("the kernel runs the programs of `wave record`".to_owned())
}

fn release() -> Result<String, String> {
    let release = machine::kernel();
    if version_at_least(&release, (5, 10)) {
        Ok(release)
    } else {
        Err(format!("{release} is older than the oldest kernel tested (5.10)"))
    }
}

/// Whether a release such as `6.1.0-31-amd64` is at least version `least`. True for a release that cannot
/// be parsed.
fn version_at_least(release: &str, least: (u32, u32)) -> bool {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= least,
        _ => true,
    }
}

fn sealed_memory() -> Result<String, String> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("wave-doctor", flags).map_err(|error| format!("memfd: {error}"))?;
    ftruncate(&memory, 4096).map_err(|error| format!("memfd: {error}"))?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| format!("sealing: {error}"))?;
    Ok("memfd with seals".into())
}

fn doorbells() -> Result<String, String> {
    eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| error.to_string())?;
    Ok("eventfd".into())
}

fn sockets() -> Result<String, String> {
    let path = places::socket("doctor").map_err(|error| error.to_string())?;
    Listener::bind(&path, &[]).map_err(|error| error.to_string())?;
    Ok(format!("in {}", path.parent().unwrap_or(&path).display()))
}

fn pinning() -> Result<String, String> {
    let cpus = cpus::allowed().map_err(|error| error.to_string())?;
    // On a separate thread, because pinning outlasts the check.
    let pinned = std::thread::spawn(move || {
        cpus.iter().try_for_each(|&cpu| cpus::pin(&[cpu])).map(|()| cpus)
    });
    let cpus = pinned.join().map_err(|_| "the test's thread panicked".to_owned())?;
    let cpus = cpus.map_err(|error| error.to_string())?;
    Ok(format!("to each of {}", counted(cpus.len(), "CPU")))
}

fn rocksdb() -> Result<String, String> {
    let mut database = Database::open(None).map_err(|error| error.to_string())?;
    database.fill(16, 16, |_, _| {}).map_err(|error| error.to_string())?;
    Ok(format!("{}, the database in {}", database.version(), parent(database.directory())))
}

fn parent(path: &Path) -> String {
    path.parent().unwrap_or(path).display().to_string()
}

fn cpus() -> Result<String, String> {
    let cpus = cpus::allowed().map_err(|error| error.to_string())?;
    let seating = seating::seat(&cpus, 1, 1);
    if seating.is_tight() {
        Err(format!("{} may be used, so seats are shared: {seating}", cpus.len()))
    } else {
        Ok(format!("{} may be used: {seating}", cpus.len()))
    }
}

fn present(path: &str, why_not: &str) -> Result<String, String> {
    if Path::new(path).exists() {
        Ok(path.to_owned())
    } else {
        Err(format!("no {path}: {why_not}"))
    }
}

fn root() -> Result<String, String> {
    if rustix::process::geteuid().is_root() {
        Ok("yes".into())
    } else {
        Err("not root: only this needs it".into())
    }
}

#[cfg(test)]
mod tests {
    use super::version_at_least;

    #[test]
    fn releases_compare_by_number() {
        assert!(version_at_least("6.1.0-31-amd64", (5, 10)));
        assert!(version_at_least("5.10.0", (5, 10)));
        assert!(!version_at_least("5.9.16", (5, 10)));
        assert!(version_at_least("strange", (5, 10)));
    }
}
