//! A cgroup for one program: MGLRU ages one cgroup at a time, and its counters are those of the program.

use std::path::{Path, PathBuf};

use wave_terminal::Failure;

const ROOT: &str = "/sys/fs/cgroup";
const PREFIX: &str = "wave-bakeoff-";

/// The memory controller, enabled below the root; restored on drop.
pub struct Controller {
    enabled: bool,
}

impl Controller {
    /// Whether the machine has cgroup v2 with the memory controller.
    pub fn is_there() -> bool {
        let text = std::fs::read_to_string(Path::new(ROOT).join("cgroup.controllers"));
        text.unwrap_or_default().split_whitespace().any(|name| name == "memory")
    }

    /// Enables the memory controller for groups below the root.
    pub fn enable() -> Result<Controller, Failure> {
        remove_leftovers();
        let file = Path::new(ROOT).join("cgroup.subtree_control");
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.split_whitespace().any(|name| name == "memory") {
            return Ok(Controller { enabled: false });
        }
        super::put(&file, "+memory")?;
        Ok(Controller { enabled: true })
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if self.enabled {
            let _ = super::put(&Path::new(ROOT).join("cgroup.subtree_control"), "-memory");
        }
    }
}

/// Removes groups left by runs that were killed. A group in use cannot be removed, and stays.
fn remove_leftovers() {
    for entry in std::fs::read_dir(ROOT).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// A cgroup, removed on drop: its processes must have ended by then.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a control group with a fresh name below the root.
    pub fn make() -> Result<Cgroup, Failure> {
        let folder = Path::new(ROOT).join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir(&folder)
            .map_err(|error| Failure::Cannot(format!("{}: {error}", folder.display())))?;
        Ok(Cgroup(folder))
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The kernel's name for it: the path below the root.
    pub fn name(&self) -> String {
        format!("/{}", self.0.file_name().unwrap_or_default().to_string_lossy())
    }

    /// Reads the counter `name` of `memory.stat`.
    pub fn counter(&self, name: &str) -> Result<u64, Failure> {
        let file = self.0.join("memory.stat");
        let text = std::fs::read_to_string(&file)
            .map_err(|error| Failure::Cannot(format!("{}: {error}", file.display())))?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let number = value.and_then(|value| value.parse().ok());
        number.ok_or_else(|| Failure::Cannot(format!("{} has no {name}", file.display())))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may take a moment to leave the group.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
