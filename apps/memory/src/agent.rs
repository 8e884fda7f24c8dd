//! An agent of a memory enclave, in a process of its own.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use wave_confine::User;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_linux::memory::Enclave;
use wave_memory::policies;
use wave_terminal::Failure;

use wave_apps::agent::AgentProcess;

/// An agent is late after this many of its longest periods.
const PERIODS_LATE: u64 = 3;
/// Time allowed for an agent behind a device to attach.
const DEVICE_PATIENCE: Duration = Duration::from_secs(30);

/// Makes the host wait for three of the policy's longest periods before it turns an agent out, unless it waits longer anyway.
///
/// # Errors
/// There is no such policy.
pub fn set_patience(policy: &str, config: &mut Config) -> Result<(), Failure> {
    let policy = policies::by_name(policy, config);
    let longest = policy.map_err(|error| Failure::Scenario(error.to_string()))?.longest_period();
    config.patience = config.patience.max(Nanos(PERIODS_LATE * longest.0));
    Ok(())
}

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

/// Waits until an agent decides: this one, or without it one behind a device; or until the run `is_over`.
///
/// # Errors
/// It ended, or none attached in time.
pub fn wait_until_attached(
    ours: Option<&mut AgentProcess>,
    enclave: &Enclave,
    is_over: impl Fn() -> bool,
) -> Result<(), Failure> {
    let is_attached = || enclave.stats().agents > 0 || is_over();
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
