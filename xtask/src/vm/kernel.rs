//! The kernel that the virtual machine boots: Debian sid's cloud kernel, which has sched_ext and
//! BTF. It is fetched once, unpacked under `target/vm/kernel`, and then used without a network.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::apt::PrivateApt;
use super::{Error, folder, output_of, remove_abandoned};

/// A metapackage that depends on the newest image.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// The suite whose kernels have sched_ext.
const SUITE: &str = "sid";
/// Prefix of the folders that kernels are fetched into; the process's number follows.
const WORK_PREFIX: &str = "fetch-";

#[derive(Clone, Debug)]
pub struct Kernel {
    /// Release, as `uname -r` prints it.
    pub version: String,
    /// The kernel itself, uncompressed: QEMU starts it directly, and it carries the BTF.
    pub vmlinux: PathBuf,
    /// The contents of `/lib/modules/VERSION` on other machines.
    pub modules: PathBuf,
}

impl Kernel {
    fn at(home: &Path) -> Option<Self> {
        let version = fs::read_to_string(home.join("stamp")).ok()?.trim().to_owned();
        let modules = home.join("modules");
        let vmlinux = home.join("vmlinux");
        (vmlinux.is_file() && modules.is_dir()).then_some(Self { version, vmlinux, modules })
    }
}

/// The kernel of an earlier fetch, or else one fetched now.
pub fn cached_or_fetched() -> Result<Kernel, Error> {
    Kernel::at(&home()).map_or_else(fetch, Ok)
}

/// Fetches the newest kernel, and replaces the current one.
pub fn fetch() -> Result<Kernel, Error> {
    // A folder for each process: two fetches at once do not collide, and a failed one leaves the
    // old kernel.
    remove_abandoned(&folder(), WORK_PREFIX);
    let work = folder().join(format!("{WORK_PREFIX}{}", std::process::id()));
    let result = fetch_into(&work).and_then(|()| put_in_place(&work.join("kernel")));
    let _ = fs::remove_dir_all(&work);
    result.map_err(|error| Error::Unavailable(format!("no kernel for the machine: {error}")))?;
    Kernel::at(&home()).ok_or_else(|| Error::Unavailable("the fetched kernel is incomplete".into()))
}

fn home() -> PathBuf {
    folder().join("kernel")
}

fn fetch_into(work: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| format!("{}: {error}", work.display());
    let unpacked = work.join("unpacked");
    let kernel = work.join("kernel");
    fs::create_dir_all(&unpacked).and_then(|()| fs::create_dir_all(&kernel)).map_err(text)?;

    eprintln!("vm: looking for the newest {PACKAGE} of Debian {SUITE}");
    let apt = PrivateApt::with_suite(work, SUITE)?;
    let (version, packages) = packages(&apt)?;
    eprintln!("vm: fetching {}", packages.join(" "));
    apt.unpack(&packages, &unpacked)?;

    let modules = first_of(&unpacked, &["usr/lib/modules", "lib/modules"], &version)?;
    let boot_image = format!("boot/vmlinuz-{version}");
    let image = [modules.join("vmlinuz"), unpacked.join(boot_image)];
    let image = image.iter().find(|image| image.is_file()).ok_or("the package has no vmlinuz")?;
    decompress_image(&fs::read(image).map_err(text)?, &kernel.join("vmlinux"))?;
    fs::rename(&modules, kernel.join("modules")).map_err(text)?;
    fs::write(kernel.join("stamp"), format!("{version}\n")).map_err(text)
}

/// The version, and the packages that contain the kernel and its modules: the image that the
/// metapackage depends on, and those of its dependencies that have the same version.
fn packages(apt: &PrivateApt) -> Result<(String, Vec<String>), String> {
    let depends = apt.dependencies(PACKAGE)?;
    let versioned = depends.iter().find_map(|name| name.strip_prefix("linux-image-"));
    let version = versioned.ok_or_else(|| format!("{PACKAGE} depends on no image"))?;
    let image = format!("linux-image-{version}");
    let mut packages = apt.dependencies(&image)?;
    packages.retain(|name| name.ends_with(&format!("-{version}")));
    packages.push(image);
    Ok((version.into(), packages))
}

fn first_of(root: &Path, parents: &[&str], name: &str) -> Result<PathBuf, String> {
    let mut candidates = parents.iter().map(|parent| root.join(parent).join(name));
    candidates.find(|path| path.is_dir()).ok_or_else(|| format!("no folder of modules for {name}"))
}

fn put_in_place(fetched: &Path) -> Result<(), String> {
    let home = home();
    let old = fetched.with_extension("old");
    let _ = fs::rename(&home, &old);
    match fs::rename(fetched, &home) {
        // Another fetch was faster; its kernel is equally new.
        Err(_) if Kernel::at(&home).is_some() => Ok(()),
        result => result.map_err(|error| format!("{}: {error}", home.display())),
    }
}

/// Extracts the ELF file from a bzImage.
fn decompress_image(image: &[u8], into: &Path) -> Result<(), String> {
    let payload = payload(image).ok_or("vmlinuz has no payload where its header says")?;
    let (program, payload) = match payload {
        [0x1f, 0x8b, ..] => ("gzip", payload),
        // For all formats but gzip the kernel's build appends the uncompressed size.
        [0x28, 0xb5, 0x2f, 0xfd, .., _, _, _, _] => ("zstd", &payload[..payload.len() - 4]),
        [0xfd, b'7', b'z', b'X', .., _, _, _, _] => ("xz", &payload[..payload.len() - 4]),
        _ => return Err("vmlinuz is compressed in an unknown format".into()),
    };
    let out = fs::File::create(into).map_err(|error| format!("{}: {error}", into.display()))?;
    let mut child = Command::new(program)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(out)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let written = child.stdin.take().expect("it is piped").write_all(payload);
    let status = child.wait().map_err(|error| error.to_string())?;
    match written {
        Ok(()) if status.success() => Ok(()),
        _ => Err(format!("{program} could not decompress vmlinuz")),
    }
}

/// The compressed kernel in a bzImage: Documentation/arch/x86/boot.rst, `payload_offset`.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    image.get(start..start.checked_add(word(0x24c)?)?)
}

/// A module's bytes, decompressed.
pub fn read_module(path: &Path) -> Result<Vec<u8>, String> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).map_err(|error| format!("{}: {error}", path.display())),
    };
    Ok(output_of(Command::new(program).arg("-dc").arg(path))?.stdout)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn finds_the_payload_of_an_image() {
        let mut image = vec![0; 0x600];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&0x10_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&3_u32.to_le_bytes());
        image[0x410..0x413].copy_from_slice(b"abc");
        assert_eq!(payload(&image), Some(&b"abc"[..]));
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None);
    }
}
