//! Our tool: a host in this process and an agent in another, as in `wave memory run`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wave_linux::memory::{Enclave, Group, Limits, Options};

use super::super::places::Places;
use wave_app_memory::agent;
use wave_apps::agent::AgentProcess;
use wave_memory::{policies, serve};
use wave_terminal::Failure;

/// Strips for a program and its other mappings: 8 GiB.
const STRIPS: u32 = 512;

/// A policy, with or without the host's limits.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    /// Policy of the memory's agent, one of `wave policies`.
    pub policy: String,
    /// Whether the host has its shipped limits on refaults and pressure, or none.
    #[serde(default)]
    pub limits: bool,
    /// Whether the setting gets the times of `slow`.
    #[serde(default)]
    pub slow: bool,
}

impl Ours {
    /// # Errors
    /// Says what is wrong with the policy.
    pub fn check(&self) -> Result<(), String> {
        let made = policies::by_name(&self.policy, &serve::config(1));
        made.map(|_| ()).map_err(|error| format!("`policy`: {error}"))
    }

    pub fn name(&self) -> &str {
        self.policy.split(':').next().unwrap_or(&self.policy)
    }

    /// Whether the policy has no settings: it runs as it ships.
    pub fn is_shipped(&self) -> bool {
        self.policy == self.name() && self.limits
    }

    pub fn describe(&self) -> String {
        let limits =
            if self.limits { ", with the shipped limits on refaults and pressure" } else { "" };
        format!("{}{limits}", self.policy)
    }

    pub fn start(&self, pid: i32, places: Places) -> Result<HostAndAgent, Failure> {
        let socket = wave_process::places::socket("bakeoff").map_err(Failure::cannot)?;
        let mut options = Options::new(socket, vec![Group::Process(pid)], STRIPS);
        if !self.limits {
            options.limits = Limits::NONE;
        }
        agent::set_patience(&self.policy, &mut options.config)?;
        let enclave = Enclave::start(options).map_err(Failure::cannot)?;
        let mut agent =
            places.beside(|| agent::start(&self.policy, enclave.socket(), None, None))?;
        agent::wait_until_attached(Some(&mut agent), &enclave, || false)?;
        Ok(HostAndAgent { agent, enclave })
    }
}

/// A running host and agent.
pub struct HostAndAgent {
    // Dropped before the enclave: the agent detaches while the enclave still exists.
    agent: AgentProcess,
    enclave: Enclave,
}

impl HostAndAgent {
    /// Process id of the agent that decides.
    pub fn agent(&self) -> i32 {
        self.agent.pid().as_raw_pid()
    }

    /// CPU time of the host's thread, up to half a second old.
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
