//! The programs on this machine that the virtual machine needs. Missing ones are installed.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Error, machine, share};

/// Installs missing programs: QEMU, a static busybox, decompressors, virtiofsd.
pub fn install() -> Result<(), Error> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(Error::Unavailable(
            "the guest runs this machine's programs, so this machine must be x86-64 Linux".into(),
        ));
    }
    let first = missing();
    install_packages(&first)?;
    // Some releases have it in a package of QEMU, others in its own package.
    if share::program().is_none() {
        install_packages(&["virtiofsd"])?;
    }
    let still = missing();
    if !still.is_empty() || share::program().is_none() {
        return Err(Error::Unavailable(format!("still missing after the installation: {still:?}")));
    }
    if share::needs_root() && !is_root() {
        return Err(Error::Unavailable(
            "this release's virtiofsd serves only root: run it as root (from Debian 13 on, \
             the package virtiofsd serves everybody)"
                .into(),
        ));
    }
    Ok(())
}

/// The unmodified programs that tests run in the machine.
pub fn install_workloads() -> Result<(), Error> {
    let needed =
        [("stress-ng", "stress-ng"), ("redis-benchmark", "redis-tools"), ("lspci", "pciutils")];
    let missing = needed.iter().filter(|(program, _)| !is_there(program));
    install_packages(&missing.map(|(_, package)| *package).collect::<Vec<_>>())
}

fn missing() -> Vec<&'static str> {
    let needed = [
        (machine::QEMU, "qemu-system-x86"),
        ("zstd", "zstd"),
        ("xz", "xz-utils"),
        ("dpkg-deb", "dpkg"),
        ("setpriv", "util-linux"),
    ];
    let mut missing: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    if busybox().is_none() {
        missing.push("busybox-static");
    }
    missing
}

/// The bytes of a statically linked busybox.
pub fn busybox() -> Option<Vec<u8>> {
    let places = ["/usr/bin/busybox", "/bin/busybox"];
    let mut programs = places.iter().filter_map(|place| std::fs::read(place).ok());
    // A dynamically linked one names its loader.
    programs.find(|bytes| !bytes.windows(4).take(4096).any(|window| window == b"/ld-"))
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn install_packages(packages: &[&str]) -> Result<(), Error> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    let unavailable = |what: String| Err(Error::Unavailable(what));
    if !is_there("apt-get") {
        return unavailable(format!(
            "there is no apt-get; install the equivalents of Debian's {list}"
        ));
    }
    let prefix: &[&str] = if is_root() {
        &[]
    } else if is_there("sudo") {
        &["sudo"]
    } else {
        return unavailable(format!("run as root: apt-get update && apt-get install -y {list}"));
    };
    eprintln!("vm: installing Debian packages: {list}");
    apt_get(prefix, &["update", "-qq"])?;
    let options =
        ["-o", "DPkg::Lock::Timeout=300", "install", "-y", "-qq", "--no-install-recommends"];
    apt_get(prefix, &[&options[..], packages].concat())
}

fn apt_get(prefix: &[&str], arguments: &[&str]) -> Result<(), Error> {
    let words = [prefix, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], arguments].concat();
    let status = Command::new(words[0]).args(&words[1..]).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Unavailable(format!("{} failed: {status}", words.join(" ")))),
        Err(error) => Err(Error::Unavailable(format!("{}: {error}", words.join(" ")))),
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|metadata| metadata.uid() == 0)
}
