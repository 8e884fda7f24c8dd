//! Commands that supply missing items on this machine; none where no command here would help.

use std::path::Path;

use wave_apps::machine::kernel;

/// Facts about the machine, from files below `/`.
pub struct Remedies {
    pub is_root: bool,
    pub release: String,
    /// Text of `/proc/cpuinfo`.
    pub cpuinfo: String,
    /// Number of online CPUs, including those that this process may not use.
    pub cpus_online: usize,
    /// Whether a path exists.
    pub has: fn(&Path) -> bool,
    /// The text of a file; empty if there is no such file.
    pub text: fn(&Path) -> String,
}

impl Remedies {
    /// The facts about this machine.
    pub fn here() -> Self {
        let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            is_root: rustix::process::geteuid().is_root(),
            release: kernel(),
            cpuinfo: text(Path::new("/proc/cpuinfo")),
            cpus_online: text(Path::new("/proc/cpuinfo")).matches("processor\t").count(),
            has: Path::exists,
            text,
        }
    }

    fn has(&self, path: &str) -> bool {
        (self.has)(Path::new(path))
    }

    /// Whether the kernel can load a module, or has it built in.
    fn has_module(&self, name: &str) -> bool {
        let folder = format!("/lib/modules/{}", self.release);
        ["modules.dep", "modules.builtin"].iter().any(|list| {
            let list = (self.text)(&Path::new(&folder).join(list));
            list.contains(&format!("/{name}.ko"))
        })
    }

    /// Whether the kernel was built with an option.
    fn has_option(&self, option: &str) -> bool {
        let config = (self.text)(Path::new(&format!("/boot/config-{}", self.release)));
        config.lines().any(|line| line == format!("{option}=y"))
    }

    fn has_cpu_flag(&self, flag: &str) -> bool {
        let mut flags = self.cpuinfo.lines().filter(|line| line.starts_with("flags"));
        flags.next().is_some_and(|line| line.split(' ').any(|word| word == flag))
    }

    /// `command` under sudo; `None` if this user is root already, as repeating it would tell nothing new.
    pub fn as_root(&self, command: &str) -> Option<String> {
        (!self.is_root).then(|| format!("sudo {command}"))
    }

    pub fn cpus(&self, allowed: usize) -> Option<String> {
        Some(match self.cpus_online > allowed {
            true => format!("taskset -c 0-{} wave run SCENARIO.toml", self.cpus_online - 1),
            false => "wave run SCENARIO.toml --host sim".to_owned(),
        })
    }

    /// For features that this kernel lacks and the virtual machine's kernel has.
    pub fn other_kernel(&self) -> Option<String> {
        let is_released = self.has("target/release/wave") && !self.has("target/debug/wave");
        let build = if is_released { "release" } else { "debug" };
        let command = format!("cargo xtask vm run -- target/{build}/wave doctor");
        self.has("xtask/src/vm").then_some(command)
    }

    pub fn kvm(&self) -> Option<String> {
        let module = match (self.has_cpu_flag("svm"), self.has_cpu_flag("vmx")) {
            (true, _) => "kvm-amd",
            (_, true) => "kvm-intel",
            _ => return None,
        };
        self.has_module(module).then(|| format!("sudo modprobe {module}"))
    }

    pub fn vfio(&self, has_groups: bool) -> Option<String> {
        let has_iommu = ["DMAR", "IVRS"]
            .iter()
            .any(|table| self.has(&format!("/sys/firmware/acpi/tables/{table}")));
        match has_groups {
            true => self.has_module("vfio-pci").then(|| "sudo modprobe vfio-pci".to_owned()),
            false => has_iommu
                .then(|| "boot with intel_iommu=on, and the IOMMU on in firmware".to_owned()),
        }
    }

    pub fn tap(&self) -> Option<String> {
        match self.has("/dev/net/tun") {
            true => self.as_root("wave doctor"),
            false => self.has_module("tun").then(|| "sudo modprobe tun".to_owned()),
        }
    }

    pub fn pressure(&self) -> Option<String> {
        self.has_option("CONFIG_PSI")
            .then(|| "boot with psi=1; without it only refaults limit paging out".to_owned())
    }

    pub fn rocksdb(&self) -> Option<String> {
        let install =
            self.has("/usr/bin/apt-get").then_some("sudo apt-get install librocksdb-dev; ");
        Some(format!("{}df -h /dev/shm", install.unwrap_or_default()))
    }

    /// Command to try a scenario, or to list kinds where no scenario file is at hand.
    pub fn scenario(&self) -> &'static str {
        match self.has("scenarios/rocksdb-fifo.toml") {
            true => "wave run scenarios/rocksdb-fifo.toml",
            false => "wave scenarios load",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that has none of the files.
    fn bare() -> Remedies {
        Remedies {
            is_root: true,
            release: "6.1.0".to_owned(),
            cpuinfo: "processor\t: 0\nflags\t\t: fpu sse2\n".to_owned(),
            cpus_online: 1,
            has: |_| false,
            text: |_| String::new(),
        }
    }

    /// A new user got `taskset -c 0-3` on two CPUs, and `modprobe` of modules that the kernel does not have.
    #[test]
    fn remedies_that_the_machine_lacks_are_not_suggested() {
        let bare = bare();
        let all = [
            bare.as_root("wave doctor"),
            bare.other_kernel(),
            bare.kvm(),
            bare.vfio(false),
            bare.vfio(true),
            bare.tap(),
            bare.pressure(),
        ];
        assert_eq!(all, [const { None }; 7]);
        assert_eq!(bare.cpus(1).unwrap(), "wave run SCENARIO.toml --host sim");
        assert_eq!(bare.scenario(), "wave scenarios load");
    }

    #[test]
    fn available_remedies_are_suggested() {
        let machine = Remedies {
            is_root: false,
            cpuinfo: "processor\t: 0\nflags\t\t: fpu svm sse2\n".to_owned(),
            cpus_online: 8,
            has: |path| path == Path::new("/dev/net/tun"),
            text: |path| match path.to_str().unwrap_or_default() {
                "/lib/modules/6.1.0/modules.dep" => {
                    "kernel/arch/x86/kvm/kvm-amd.ko.xz: kernel/x.ko\n".to_owned()
                }
                "/boot/config-6.1.0" => "CONFIG_PSI=y\n".to_owned(),
                _ => String::new(),
            },
            ..bare()
        };
        assert_eq!(machine.cpus(2).unwrap(), "taskset -c 0-7 wave run SCENARIO.toml");
        assert_eq!(machine.kvm().unwrap(), "sudo modprobe kvm-amd");
        assert_eq!(machine.tap().unwrap(), "sudo wave doctor");
        assert!(machine.pressure().unwrap().starts_with("boot with psi=1"));
        assert_eq!(machine.vfio(true), None, "its kernel has no vfio-pci");
    }
}
