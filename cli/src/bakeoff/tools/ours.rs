//! Ours: `wave memory run`, as an operator would type it, without a limit on refaults.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wave_linux::memory::{Group, processes_of};

use crate::run::Failure;

/// A host and an agent, in processes of their own.
pub struct Ours(Child);

impl Ours {
    pub fn start(policy: &str, pid: i32) -> Result<Ours, Failure> {
        use std::os::unix::process::CommandExt;
        let program = std::env::current_exe().map_err(Failure::cannot)?;
        let mut command = Command::new(program);
        command.args(["memory", "run", "--quiet", "--refaults", "1000000", "--pressure", "100"]);
        command.args(["--most", "16GiB", "--policy", policy, "--pid", &pid.to_string()]);
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map(Ours).map_err(Failure::cannot)
    }

    pub fn cpu(&self) -> Duration {
        let processes = processes_of(&Group::Process(self.0.id() as i32)).unwrap_or_default();
        let threads = processes.iter().flat_map(|pid| {
            std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten()
        });
        threads.map(|thread| super::cpu_of(&thread.path().join("schedstat"))).sum()
    }

    pub fn check(&mut self) -> Result<(), Failure> {
        let Ok(Some(status)) = self.0.try_wait() else { return Ok(()) };
        let mut said = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        Err(Failure::Cannot(format!("wave memory run ended ({status}): {}", said.trim())))
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id() as i32)
            && Path::new(&format!("/proc/{pid}")).exists()
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}
