//! The virtual machine: its configuration, and QEMU's arguments for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::guest::{PORT_CONTROL, PORT_ERR, PORT_OUT, SHARE_TAG};
use super::{nic, output_of};

/// A command, and the configuration of its machine.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub cpus: u32,
    /// The guest's memory, in MiB.
    pub memory_mib: u32,
    /// Longest time without output before the guest is ended. Ten times that ends it even with output.
    pub silence_max: Duration,
    /// Time advances with the instructions that all CPUs execute: slower, and the same on every machine.
    pub icount: bool,
    /// Additions to the kernel's command line.
    pub append: Vec<String>,
    /// Size of an empty disk at /var/tmp, in MiB; 0 for none. The guest's other files are in its memory, where no file can be
    /// swap.
    pub disk_mib: u32,
    /// Kernel modules to load.
    pub modules: Vec<String>,
    /// Files to copy into the guest's own memory.
    pub copied: Vec<Copied>,
    /// The folder for a PCI device whose other side is a process here, through files there (see [`super::nic`]).
    pub nic: Option<PathBuf>,
    pub command: Vec<String>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            cpus: 2,
            memory_mib: 2048,
            silence_max: Duration::from_secs(300),
            icount: false,
            append: Vec::new(),
            disk_mib: 0,
            modules: Vec::new(),
            copied: Vec::new(),
            nic: None,
            command: Vec::new(),
        }
    }
}

/// A file to copy into the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Path on this machine.
    pub from: PathBuf,
    /// Path in the guest; `None` for the same path.
    pub to: Option<PathBuf>,
}

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// KVM: the processor runs the guest.
    Kvm,
    /// QEMU translates the instructions: works everywhere, but times mean nothing.
    Tcg,
}

impl Accelerator {
    /// The name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// The files and sockets of one machine.
pub struct Paths {
    /// The uncompressed kernel.
    pub vmlinux: PathBuf,
    /// The output of [`super::initramfs`].
    pub initramfs: PathBuf,
    /// The file that receives the kernel's messages.
    pub console: PathBuf,
    /// Socket of the control port; this side listens on it, and on the next two.
    pub control: PathBuf,
    /// Socket of the command's standard output.
    pub out: PathBuf,
    /// Socket of the command's standard error.
    pub err: PathBuf,
    /// The socket of [`super::share`].
    pub share: PathBuf,
    /// The disk's image, if a disk is wanted.
    pub disk: PathBuf,
}

pub const QEMU: &str = "qemu-system-x86_64";

/// The first version whose translator may run virtual CPUs in parallel. Before 8.1 a CPU may execute the old version of code
/// that another has just patched (commit deba78709ae8), and a kernel that patches itself, as when a sched_ext scheduler is
/// loaded, dies of a stale `int3`.
const PARALLEL_SINCE: (u32, u32) = (8, 1);

/// The installed QEMU's version, major and minor.
pub fn qemu_version() -> Result<(u32, u32), String> {
    let output = output_of(Command::new(QEMU).arg("--version"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    version_in(&text).ok_or_else(|| format!("cannot find the version of {QEMU} in {text:?}"))
}

fn version_in(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub fn arguments(
    paths: &Paths,
    wanted: &Wanted,
    accelerator: Accelerator,
    qemu_version: (u32, u32),
) -> Vec<OsString> {
    let mut line = Line::default();
    line.add("-nodefaults").add("-no-user-config").add("-no-reboot");
    line.pair("-display", "none");
    // KVM's own interrupt controller cannot remap interrupts.
    let split = match (accelerator, &wanted.nic) {
        (Accelerator::Kvm, Some(_)) => ",kernel-irqchip=split",
        _ => "",
    };
    line.pair("-machine", &format!("q35,memory-backend=ram{split}"));
    match accelerator {
        Accelerator::Kvm => line.pair("-accel", "kvm").pair("-cpu", "host"),
        Accelerator::Tcg if wanted.icount => line
            .pair("-accel", "tcg,thread=single")
            .pair("-icount", "shift=0,sleep=off,align=off")
            .pair("-cpu", "max"),
        Accelerator::Tcg if qemu_version < PARALLEL_SINCE => {
            line.pair("-accel", "tcg,thread=single").pair("-cpu", "max")
        }
        Accelerator::Tcg => line.pair("-accel", "tcg,thread=multi").pair("-cpu", "max"),
    };
    // virtiofsd, at the share's other end, accesses the guest's memory.
    let memory = match &wanted.nic {
        None => String::from("memory-backend-memfd"),
        Some(folder) => format!("memory-backend-file,mem-path={}", nic::memory(folder).display()),
    };
    let memory = format!("{memory},id=ram,size={}M,share=on", wanted.memory_mib);
    line.pair("-object", &memory).pair("-m", &format!("{}M", wanted.memory_mib));
    line.pair("-smp", &wanted.cpus.to_string());
    line.path("-kernel", &paths.vmlinux).path("-initrd", &paths.initramfs);
    line.pair("-append", &kernel_line(accelerator, wanted));
    line.pair("-serial", &format!("file:{}", paths.console.display()));
    if let Some(folder) = &wanted.nic {
        // The IOMMU must come before the devices behind it.
        line.pair("-device", "intel-iommu,intremap=on");
        line.pair("-chardev", &format!("socket,id=nic,path={}", nic::socket(folder).display()));
        line.pair("-device", &format!("ivshmem-doorbell,chardev=nic,vectors={}", nic::VECTORS));
    }
    if wanted.disk_mib > 0 {
        let drive = format!("id=disk,if=none,format=raw,file={}", paths.disk.display());
        line.pair("-drive", &drive).pair("-device", "virtio-blk-pci,drive=disk");
    }
    line.pair("-device", "virtio-serial-pci");
    for (name, socket) in
        [(PORT_CONTROL, &paths.control), (PORT_OUT, &paths.out), (PORT_ERR, &paths.err)]
    {
        line.pair("-chardev", &format!("socket,id={name},path={}", socket.display()));
        line.pair("-device", &format!("virtserialport,chardev={name},name={name}"));
    }
    line.pair("-chardev", &format!("socket,id=share,path={}", paths.share.display()));
    line.pair("-device", &format!("vhost-user-fs-pci,chardev=share,tag={SHARE_TAG}"));
    line.words
}

/// For an emulated processor: no CPU mitigations, no zeroing on allocation, and expedited RCU grace periods, since loading or
/// unloading a scheduler waits for several. Where instructions are counted, Debian's defaults stay.
const EMULATED: &str = " mitigations=off init_on_alloc=0 rcupdate.rcu_expedited=1";

/// A panic or an oops ends the machine at once, without waiting for the timeout. On a busy machine the timer may be so late
/// that the kernel would take it for broken.
fn kernel_line(accelerator: Accelerator, wanted: &Wanted) -> String {
    let mut line = String::from("console=ttyS0 panic=-1 oops=panic no_timer_check");
    if accelerator == Accelerator::Tcg && !wanted.icount {
        line.push_str(EMULATED);
    }
    if wanted.nic.is_some() {
        line.push_str(" intel_iommu=on");
    }
    for more in &wanted.append {
        line.push(' ');
        line.push_str(more);
    }
    line
}

#[derive(Default)]
struct Line {
    words: Vec<OsString>,
}

impl Line {
    fn add(&mut self, word: &str) -> &mut Self {
        self.words.push(word.into());
        self
    }

    fn pair(&mut self, option: &str, value: &str) -> &mut Self {
        self.add(option).add(value)
    }

    fn path(&mut self, option: &str, value: &Path) -> &mut Self {
        self.add(option).words.push(value.into());
        self
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn reads_versions() {
        assert_eq!(version_in("QEMU emulator version 7.2.22 (Debian 1:7.2)"), Some((7, 2)));
        assert_eq!(version_in("QEMU emulator version 10.0"), Some((10, 0)));
        assert_eq!(version_in("QEMU"), None);
    }
}
