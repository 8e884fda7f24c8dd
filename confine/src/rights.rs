//! Capabilities, users, and the limit of locked memory.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::{ConfineError, Role, User};

/// Capabilities that a role needs once it is set up.
pub fn needed(role: Role) -> CapabilitySet {
    match role {
        Role::Agent | Role::Front | Role::Tcp | Role::Server => CapabilitySet::empty(),
        // To read the pages of other users' programs and to page them out, to run its BPF programs, and to remove its swap. Its
        // command may be another user's, and so may be files that its user names.
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

/// Lets an agent of the kernel's host lock its memory also after it has lost the capability for it: once all memory is locked, a
/// page that cannot be locked cannot be mapped. Returns the capability where it stays needed for that.
pub fn raise_locked_memory() -> CapabilitySet {
    let none = CapabilitySet::empty();
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, unlimited).is_ok() {
        return none;
    }
    let limit = getrlimit(Resource::Memlock);
    // It is as high as this process may have it.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, ..limit });
    match limit.maximum.is_some() && locks_memory() {
        true => CapabilitySet::IPC_LOCK,
        false => none,
    }
}

/// Whether this process has locked memory: agents of the kernel's host lock all, before they are confined.
fn locks_memory() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    locked.is_some_and(|kib| !kib.trim_start().starts_with('0'))
}

/// Gives up what the role does not need, for the calling thread and for what it starts, for ever.
/// `more`: capabilities beside the role's.
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
    // Before 4.3 there was none to clear.
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

/// Where it was root before, the kernel takes all capabilities away.
fn become_user(user: User) -> io::Result<()> {
    use rustix::process::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}
