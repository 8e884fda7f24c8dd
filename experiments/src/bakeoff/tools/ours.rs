//! Ours: a host in this process and an agent in another, as `wave memory run` has them, without a limit on refaults.

use std::time::Duration;

use wave_linux::memory::{Enclave, Group, Limits, Options};

use super::super::places::Places;
use crate::memory::agent;
use crate::run::agent::AgentProcess;
use wave_lab::Failure;

/// Room for a program and what it maps besides: 8 GiB.
const STRIPS: u32 = 512;

/// A host and an agent.
pub struct Ours {
    // Before the enclave: it leaves while there is one.
    agent: AgentProcess,
    enclave: Enclave,
}

impl Ours {
    pub fn start(policy: &str, pid: i32, places: Places) -> Result<Ours, Failure> {
        let socket = wave_links::places::socket("bakeoff").map_err(Failure::cannot)?;
        let mut options = Options::new(socket, vec![Group::Process(pid)], STRIPS);
        options.limits = Limits { refaults_per_minute: f64::INFINITY, pressure_percent: 100.0 };
        let enclave = Enclave::start(options).map_err(Failure::cannot)?;
        let mut agent = places.beside(|| agent::start(policy, enclave.socket(), None))?;
        agent::wait_until_attached(Some(&mut agent), &enclave)?;
        Ok(Ours { agent, enclave })
    }

    /// Of the host's thread as of half a second ago at most.
    pub fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.agent.pid().as_raw_pid()));
        let agent: Duration = tasks
            .into_iter()
            .flatten()
            .flatten()
            .map(|thread| super::cpu_of(&thread.path().join("schedstat")))
            .sum();
        self.enclave.stats().cpu + agent
    }

    pub fn check(&mut self) -> Result<(), Failure> {
        match self.agent.has_left() || self.enclave.stats().lost_agents > 0 {
            true => Err(Failure::Cannot("the agent was lost".to_owned())),
            false => Ok(()),
        }
    }
}
