//! An agent of a memory enclave, in a process of its own.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use wave_confine::User;
use wave_lab::Failure;
use wave_linux::memory::Enclave;

use crate::run::agent::AgentProcess;

/// Time allowed for an agent to attach.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);
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
    mut ours: Option<&mut AgentProcess>,
    enclave: &Enclave,
) -> Result<(), Failure> {
    let patience = if ours.is_some() { ATTACH_PATIENCE } else { DEVICE_PATIENCE };
    let start = Instant::now();
    while enclave.stats().agents == 0 {
        let ended = ours.as_mut().and_then(|agent| agent.wait_for_end(Duration::ZERO));
        if let Some(status) = ended {
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
