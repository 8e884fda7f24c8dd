//! An agent of a memory's enclave, in a process of its own: the same binary, as `wave agent`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wave_linux::memory::Enclave;

use crate::run::Failure;
use crate::run::agent::cpu_ticks;

/// How long an agent may take to attach.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);
/// The same from behind a device.
const DEVICE_PATIENCE: Duration = Duration::from_secs(30);

/// A running agent. Killed when it is dropped.
#[derive(Debug)]
pub struct Agent(Child);

impl Agent {
    /// Starts one that attaches to `socket` and writes `log`.
    pub fn start(policy: &str, socket: &Path, log: Option<&Path>) -> Result<Agent, Failure> {
        let starting = |error: std::io::Error| {
            Failure::Cannot(format!("the agent's process cannot be started: {error}"))
        };
        let program = std::env::current_exe().map_err(starting)?;
        let mut command = Command::new(program);
        command.args(["agent", "--quiet", "--leave-with-parent", "--share-cpu"]);
        command.args(["--policy", policy]).arg("--attach").arg(socket);
        if let Some(file) = log {
            command.arg("--record").arg(file).args(["--record-about", "memory"]);
        }
        // An interrupt from the terminal is not the agent's: it leaves when its host does.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map(Agent).map_err(starting)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended.
    pub fn has_left(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// What it has spent; in steps of 10 ms, as the kernel tells it.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()));
        let ticks = stat.ok().and_then(|stat| cpu_ticks(&stat)).unwrap_or(0);
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until an agent decides: this one, or without it one from behind a device.
pub fn wait_until_attached(mut ours: Option<&mut Agent>, enclave: &Enclave) -> Result<(), Failure> {
    let patience = if ours.is_some() { ATTACH_PATIENCE } else { DEVICE_PATIENCE };
    let start = Instant::now();
    while enclave.stats().agents == 0 {
        if let Some(Agent(child)) = &mut ours
            && let Ok(Some(status)) = child.try_wait()
        {
            let text = format!("the agent left before it was attached ({status})");
            return Err(match status.code() {
                Some(2) => Failure::Scenario(text),
                _ => Failure::Cannot(text),
            });
        }
        if start.elapsed() > patience {
            let text = format!("no agent attached within {} s", patience.as_secs());
            return Err(Failure::Cannot(text));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
