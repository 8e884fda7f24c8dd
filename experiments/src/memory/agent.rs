//! An agent of a memory enclave, in a process of its own.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use wave_confine::User;
use wave_lab::Failure;
use wave_linux::memory::Enclave;

use crate::run::agent::AgentProcess;

/// Time allowed for an agent behind a device to attach.
const DEVICE_PATIENCE: Duration = Duration::from_secs(30);

/// Starts an agent, on any CPU, that attaches to `socket`, writes `log`, and switches to `user`.
pub fn start(
    policy: &str,
    socket: &Path,
    log: Option<&Path>,
    user: Option<User>,
) -> Result<AgentProcess, Failure> {
    let mut words: Vec<OsString> = vec!["--policy".into(), policy.into()];
    words.extend(["--attach".into(), socket.into()]);
    if let Some(file) = log {
        words.extend(["--record".into(), file.into(), "--record-about".into(), "memory".into()]);
    }
    if let Some(user) = user {
        words.extend(["--user".into(), user.to_string().into()]);
    }
    AgentProcess::start_with(&words, None, true)
}

/// Waits until an agent decides: this one, or without it one behind a device.
pub fn wait_until_attached(
    ours: Option<&mut AgentProcess>,
    enclave: &Enclave,
) -> Result<(), Failure> {
    let is_attached = || enclave.stats().agents > 0;
    if let Some(agent) = ours {
        return agent.wait_until(|| Ok(is_attached()));
    }
    let start = Instant::now();
    while !is_attached() {
        if start.elapsed() > DEVICE_PATIENCE {
            let text = format!("no agent attached within {} s", DEVICE_PATIENCE.as_secs());
            return Err(Failure::Cannot(text));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
