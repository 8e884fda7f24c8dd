//! One run: the machine is put together, booted, listened to, and gone at the end.

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

/// Pieces of output that may wait for us to write them; beyond, the guest waits.
const PIECES_MAX: usize = 64;
/// How often it is looked whether QEMU is still there while nothing comes in.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the guest may take to power off, once told to.
const POWER_OFF_MAX: Duration = Duration::from_secs(5);
/// How long a first boot with KVM may take before it counts as not working.
const KVM_PROBE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Outcome {
    /// As a shell has it: above 128 where a signal ended it.
    pub exit_code: u8,
}

/// Boots, runs the command and writes what it writes.
pub fn run(
    kernel: &Kernel,
    wanted: &Wanted,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<Outcome, Error> {
    let accelerator = if wanted.icount { Accelerator::Tcg } else { accelerator(kernel) };
    run_with(kernel, wanted, accelerator, out, err)
}

/// KVM where a boot has shown since this machine was started that it works. `/dev/kvm` alone says
/// little: it is there on machines whose processor cannot.
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
    // If it cannot be remembered, it is probed again next time.
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
            // The guest's kernel has hung in its boot on an emulated machine. Nothing of ours has run yet.
            Ended::TimedOut { started: false } if std::mem::take(&mut may_hang) => {
                let log = logs.telling(false);
                let _ =
                    writeln!(err, "vm: the guest hung before it started, and is booted again{log}");
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

/// The processes of a machine that was started; they are gone when this is.
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
        // QEMU must not outlive us, whatever ends us.
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
            let event = self.events.recv_timeout(LOOK_EVERY);
            if event.is_ok() {
                deadline = Instant::now() + silence;
            }
            match event {
                // Where our own output is closed, the command's goes nowhere.
                Ok(Event::Out(piece)) => drop(out.write_all(&piece).and_then(|()| out.flush())),
                Ok(Event::Err(piece)) => drop(err.write_all(&piece).and_then(|()| err.flush())),
                Ok(Event::Complete) => incomplete -= 1,
                Ok(Event::Connected(stream)) => control = Some(stream),
                Ok(Event::Said(line)) => match line.split_once(' ').unwrap_or((&line, "")) {
                    ("start", _) => started = true,
                    ("exit", code) => match code.parse() {
                        Ok(code) => exit_code = Some(code),
                        Err(_) => return Ended::Failed(format!("no exit code: {code:?}")),
                    },
                    ("fail", why) => return Ended::Failed(why.into()),
                    _ => return Ended::Failed(format!("not understood: {line:?}")),
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

/// Waits for a process to end, not for ever.
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

/// A file with a file system in it. It takes room here only for what the guest writes.
fn empty_disk(path: &Path, mib: u32) -> Result<(), String> {
    let file = File::create_new(path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.set_len(u64::from(mib) << 20).map_err(|error| error.to_string())?;
    // A journal would only take time.
    let options = ["-q", "-F", "-O", "^has_journal,^metadata_csum"];
    output_of(Command::new("mkfs.ext4").args(options).arg(path)).map(drop)
}

/// Not in any output but by intention: of 64 bits that are new with each run.
fn end_mark() -> String {
    format!("wave-vm-end-{:016x}", RandomState::new().hash_one(std::process::id()))
}

const SCRATCHES: &str = "/tmp";
const SCRATCH_PREFIX: &str = "wave-vm-";

/// A folder of a short name, as sockets need it, that only we may enter; gone with the value.
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
