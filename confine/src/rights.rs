//! Capabilities, users, and the limit of locked memory.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::{ConfineError, Role, User};

/// Capabilities that a role needs after setup.
pub fn needed(role: Role) -> CapabilitySet {
    match role {
        Role::Agent | Role::Front | Role::Tcp | Role::Server => CapabilitySet::empty(),
        // To read the pages of other users' programs and page them out, to run its BPF programs, and to remove its swap. Its
        // command and the files that its user names may belong to another user.
        Role::MemoryHost => {
            CapabilitySet::SYS_PTRACE
                | CapabilitySet::SYS_ADMIN
                | CapabilitySet::SYS_NICE
                | CapabilitySet::BPF
                | CapabilitySet::PERFMON
                | CapabilitySet::DAC_OVERRIDE
                | CapabilitySet::DAC_READ_SEARCH
                | CapabilitySet::KILL
        }
    }
}

/// Lets an agent of the Linux host lock memory after it has given up the capability: once a process has locked all its memory,
/// a page that cannot be locked cannot be mapped. Returns the capability if the agent must keep it for that.
pub fn raise_locked_memory() -> CapabilitySet {
    let none = CapabilitySet::empty();
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, unlimited).is_ok() {
        return none;
    }
    let limit = getrlimit(Resource::Memlock);
    // The highest limit that this process may set.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit });
    match limit.maximum.is_some() && locks_memory() {
        true => CapabilitySet::IPC_LOCK,
        false => none,
    }
}

/// Whether this process has locked memory: agents of the Linux host lock all theirs before they are confined.
fn locks_memory() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    locked.is_some_and(|kib| !kib.trim_start().starts_with('0'))
}

/// Permanently gives up the capabilities that neither the role nor `more` names, for the calling thread and its children.
pub fn give_up(role: Role, user: Option<User>, more: CapabilitySet) -> Result<(), ConfineError> {
    let failed = |what| {
        move |error: rustix::io::Errno| ConfineError::System { what, error: io::Error::from(error) }
    };
    let own = capabilities(None).map_err(failed("capabilities"))?;
    let kept = own.permitted & (needed(role) | more);
    if own.effective.contains(CapabilitySet::SETPCAP) {
        for capability in (CapabilitySet::all() - kept).iter() {
            // A kernel that does not know a capability does not have it.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    // Linux before 4.3 has no ambient set to clear.
    let _ = clear_ambient_capability_set();
    if let Some(user) = user {
        become_user(user).map_err(|error| ConfineError::User { user, error })?;
    }
    let left = capabilities(None).map_err(failed("capabilities"))?;
    let kept = left.permitted & kept;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed("capabilities"))?;
    set_no_new_privs(true).map_err(failed("new privileges"))
}

/// If the process was root, the kernel also removes all its capabilities.
fn become_user(user: User) -> io::Result<()> {
    use rustix::process::{Gid, Uid};
    // To the kernel, this id means that the present one stays.
    if user.uid == u32::MAX || user.gid == u32::MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}
