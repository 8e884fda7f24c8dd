//! One run: assembles the machine, boots it, relays its output, and removes it at the end.

use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::initramfs::Archive;
use super::kernel::Kernel;
use super::logs::Logs;
use super::machine::{self, Accelerator, Paths, Wanted};
use super::nic::Nic;
use super::relay::{self, Event};
use super::{Error, folder, guest, modules, nic, output_of, remove_abandoned, share, tools};

/// The most pieces of output in the queue; beyond that the guest waits.
const PIECES_MAX: usize = 64;
/// Interval at which QEMU is checked while nothing comes in.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How long the guest may take to power off after it was told to.
const POWER_OFF_MAX: Duration = Duration::from_secs(5);
/// How long a first boot with KVM may take before KVM counts as broken.
const KVM_PROBE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Outcome {
    /// The exit code as a shell reports it: above 128 after a signal.
    pub exit_code: u8,
}

/// Boots, runs the command and passes on its output.
pub fn run(
    kernel: &Kernel,
    wanted: &Wanted,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<Outcome, Error> {
    let accelerator = if wanted.icount { Accelerator::Tcg } else { accelerator(kernel) };
    run_with(kernel, wanted, accelerator, out, err)
}

/// KVM, if a boot since this machine's start has shown that it works. The existence of `/dev/kvm` is not enough: machines have
/// it whose processor cannot run it.
pub fn accelerator(kernel: &Kernel) -> Accelerator {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let memory = folder().join("accelerator");
    let known = fs::read_to_string(&memory).unwrap_or_default();
    for accelerator in [Accelerator::Kvm, Accelerator::Tcg] {
        if known == format!("{} {boot}", accelerator.name()) {
            return accelerator;
        }
    }
    let accelerator = if kvm_boots(kernel) { Accelerator::Kvm } else { Accelerator::Tcg };
    // If this cannot be saved, the next run probes again.
    let _ = fs::write(&memory, format!("{} {boot}", accelerator.name()));
    accelerator
}

fn kvm_boots(kernel: &Kernel) -> bool {
    if File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return false;
    }
    let wanted =
        Wanted { silence_max: KVM_PROBE_MAX, command: vec!["true".into()], ..Wanted::default() };
    let mut nowhere = std::io::sink();
    let outcome = run_with(kernel, &wanted, Accelerator::Kvm, &mut nowhere, &mut std::io::sink());
    matches!(outcome, Ok(Outcome { exit_code: 0 }))
}

fn run_with(
    kernel: &Kernel,
    wanted: &Wanted,
    accelerator: Accelerator,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<Outcome, Error> {
    let mut may_hang = true;
    loop {
        let scratch =
            Scratch::new().map_err(|error| Error::Machine(format!("scratch: {error}")))?;
        let logs =
            Logs::begin(&scratch.name).map_err(|error| Error::Machine(format!("logs: {error}")))?;
        let mut running = Running::start(kernel, wanted, accelerator, &scratch, &logs)
            .map_err(|error| Error::Machine(format!("{error}{}", logs.telling(false))))?;
        return match running.follow(wanted.silence_max, out, err) {
            Ended::Exit(exit_code) => Ok(Outcome { exit_code }),
            // On an emulated machine the guest's kernel may hang in its boot. Nothing of ours has run yet.
            Ended::TimedOut { started: false } if std::mem::take(&mut may_hang) => {
                let log = logs.telling(false);
                let _ = writeln!(err, "vm: the guest hung during boot; booting it again{log}");
                continue;
            }
            Ended::TimedOut { started } => {
                let what = if started {
                    "the command was silent"
                } else {
                    "the guest did not start, and was silent"
                };
                let (seconds, log) = (wanted.silence_max.as_secs(), logs.telling(started));
                Err(Error::TimedOut(format!("{what} for {seconds} s{log}")))
            }
            Ended::Gone { started } => {
                let when = if started { "while the command ran" } else { "before the command" };
                let log = logs.telling(started);
                Err(Error::Machine(format!("the guest panicked or stopped {when}{log}")))
            }
            Ended::Failed(why) => {
                Err(Error::Machine(format!("in the guest: {why}{}", logs.telling(false))))
            }
        };
    }
}

enum Ended {
    Exit(u8),
    TimedOut { started: bool },
    Gone { started: bool },
    Failed(String),
}

/// The processes of a started machine; they are killed when this is dropped.
struct Running {
    qemu: Child,
    share: Child,
    events: Receiver<Event>,
    _nic: Option<Nic>,
}

impl Running {
    fn start(
        kernel: &Kernel,
        wanted: &Wanted,
        accelerator: Accelerator,
        scratch: &Scratch,
        logs: &Logs,
    ) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let paths = Paths {
            vmlinux: kernel.vmlinux.clone(),
            initramfs: scratch.path.join("initramfs"),
            console: logs.console.clone(),
            control: scratch.path.join("control"),
            out: scratch.path.join("out"),
            err: scratch.path.join("err"),
            share: scratch.path.join("share"),
            disk: scratch.path.join("disk"),
        };
        if wanted.disk_mib > 0 {
            empty_disk(&paths.disk, wanted.disk_mib)?;
        }
        let nic = wanted.nic.as_deref().map(|folder| Nic::open(folder, wanted)).transpose()?;
        let version = machine::qemu_version()?;
        let end_mark = end_mark();
        fs::write(&paths.initramfs, initramfs(kernel, wanted, &end_mark)?).map_err(text)?;

        let (send, events) = sync_channel(PIECES_MAX);
        relay::output(&paths.out, &end_mark, send.clone(), Event::Out).map_err(text)?;
        relay::output(&paths.err, &end_mark, send.clone(), Event::Err).map_err(text)?;
        relay::control(&paths.control, send).map_err(text)?;

        let log = || File::options().append(true).open(&logs.host).map_err(text);
        let share = share::serve(&paths.share, log()?)?;
        // QEMU must not outlive this process, however that ends.
        let qemu = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", machine::QEMU])
            .args(machine::arguments(&paths, wanted, accelerator, version))
            .stdin(Stdio::null())
            .stdout(log()?)
            .stderr(log()?)
            .spawn();
        match qemu {
            Ok(qemu) => Ok(Self { qemu, share, events, _nic: nic }),
            Err(error) => {
                end(share, Duration::ZERO);
                Err(format!("{}: {error}", machine::QEMU))
            }
        }
    }

    /// Returns once the exit code and all output have come or cannot come, or after `silence` without events.
    fn follow(&mut self, silence: Duration, out: &mut dyn Write, err: &mut dyn Write) -> Ended {
        let (mut deadline, last) = (Instant::now() + silence, Instant::now() + 10 * silence);
        let mut started = false;
        let mut incomplete = 2;
        let mut exit_code = None;
        let mut control: Option<UnixStream> = None;
        loop {
            if let (0, Some(exit_code), Some(control)) = (incomplete, exit_code, &control) {
                relay::let_go(control);
                wait(&mut self.qemu, POWER_OFF_MAX);
                return Ended::Exit(exit_code);
            }
            if Instant::now() >= deadline.min(last) {
                return Ended::TimedOut { started };
            }
            let event = self.events.recv_timeout(POLL_EVERY);
            if event.is_ok() {
                deadline = Instant::now() + silence;
            }
            match event {
                // If our own output is closed, the command's output is discarded.
                Ok(Event::Out(piece)) => drop(out.write_all(&piece).and_then(|()| out.flush())),
                Ok(Event::Err(piece)) => drop(err.write_all(&piece).and_then(|()| err.flush())),
                Ok(Event::Complete) => incomplete -= 1,
                Ok(Event::Connected(stream)) => control = Some(stream),
                Ok(Event::Said(line)) => match line.split_once(' ').unwrap_or((&line, "")) {
                    ("start", _) => started = true,
                    ("exit", code) => match code.parse() {
                        Ok(code) => exit_code = Some(code),
                        Err(_) => return Ended::Failed(format!("not an exit code: {code:?}")),
                    },
                    ("fail", why) => return Ended::Failed(why.into()),
                    _ => {
                        return Ended::Failed(format!(
                            "unexpected line on the control port: {line:?}"
                        ));
                    }
                },
                Err(RecvTimeoutError::Timeout) if !matches!(self.qemu.try_wait(), Ok(None)) => {
                    return Ended::Gone { started };
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ended::Gone { started },
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in [&mut self.qemu, &mut self.share] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn end(mut child: Child, patience: Duration) {
    wait(&mut child, patience);
    let _ = child.kill();
    let _ = child.wait();
}

/// Waits for a process to end, at most for `patience`.
fn wait(child: &mut Child, patience: Duration) {
    let limit = Instant::now() + patience;
    while Instant::now() < limit && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn initramfs(kernel: &Kernel, wanted: &Wanted, end_mark: &str) -> Result<Vec<u8>, String> {
    let here = std::env::current_dir().map_err(|error| format!("this folder: {error}"))?;
    let mut names = vec![String::from("overlay")];
    if wanted.nic.is_some() {
        names.extend(nic::MODULES.map(String::from));
    }
    if wanted.disk_mib > 0 {
        names.extend(guest::MODULES_OF_DISK.map(String::from));
    }
    names.extend(wanted.modules.iter().cloned());
    let modules = modules::in_order(kernel, &names)?;
    let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();

    let mut archive = Archive::default();
    for folder in ["bin", "dev", "proc", "sys", "host", "own", "new", "modules"] {
        archive.folder(folder);
    }
    archive.program("bin/busybox", &tools::busybox().ok_or("there is no static busybox")?);
    archive.program("init", guest::first_script(wanted, &names, &here).as_bytes());
    let second = guest::second_script(&wanted.command, &here, end_mark);
    archive.program("second", second.as_bytes());
    for (name, bytes) in &modules {
        archive.program(&format!("modules/{name}.ko"), bytes);
    }
    Ok(archive.finish())
}

/// A file with a file system in it. It is sparse: it takes room only for what the guest writes.
fn empty_disk(path: &Path, mib: u32) -> Result<(), String> {
    let file = File::create_new(path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.set_len(u64::from(mib) << 20).map_err(|error| error.to_string())?;
    // A journal would only cost time.
    let options = ["-q", "-F", "-O", "^has_journal,^metadata_csum"];
    output_of(Command::new("mkfs.ext4").args(options).arg(path)).map(drop)
}

/// A mark that output contains only on purpose: it has 64 random bits, new for each run.
fn end_mark() -> String {
    format!("wave-vm-end-{:016x}", RandomState::new().hash_one(std::process::id()))
}

const SCRATCHES: &str = "/tmp";
const SCRATCH_PREFIX: &str = "wave-vm-";

/// A private folder with a short path, as sockets need one; removed when dropped.
struct Scratch {
    name: String,
    path: PathBuf,
}

impl Scratch {
    fn new() -> std::io::Result<Self> {
        remove_abandoned(Path::new(SCRATCHES), SCRATCH_PREFIX);
        let number = RandomState::new().hash_one("scratch") as u32;
        let name = format!("{}-{number:08x}", std::process::id());
        let path = Path::new(SCRATCHES).join(format!("{SCRATCH_PREFIX}{name}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { name, path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
