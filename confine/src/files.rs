//! Landlock rules: files outside the folders named here can be neither opened nor changed.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::{Profile, Role};

/// The newest version of Landlock that this crate knows. An older kernel enforces the rights that it knows.
const KNOWN: ABI = ABI::V10;

/// Paths that every role may read: libraries, for the backtrace of a panic, and the kernel's own files.
const READABLE: [&str; 7] =
    ["/usr", "/lib", "/lib64", "/proc", "/sys", "/dev/null", "/dev/urandom"];

/// Rules that [`Rules::restrict`] puts into force. `None` if the kernel has no Landlock, or the role cannot use it.
pub struct Rules(Option<RulesetCreated>);

impl Rules {
    /// The rules of a profile. Its folders must exist.
    pub fn of(profile: &Profile) -> Rules {
        // It starts agents, which read and write files that their users name. And the kernel does not let a restricted process
        // read the memory of an unrestricted one.
        if profile.role == Role::MemoryHost {
            return Rules(None);
        }
        Rules(make(profile).ok())
    }

    /// Restricts the calling thread and the threads that it starts. Returns whether the kernel enforces the rules.
    pub fn restrict(self) -> bool {
        let restricted = self.0.map(RulesetCreated::restrict_self);
        restricted.is_some_and(|restricted| {
            restricted.is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
        })
    }
}

fn make(profile: &Profile) -> Result<RulesetCreated, landlock::RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let own = std::env::current_exe().ok();
    for path in READABLE.iter().map(Path::new).chain(own.as_deref()) {
        rules = allow(rules, path, read)?;
    }
    let socket = AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::ResolveUnix;
    for path in &profile.sockets {
        rules = allow(rules, &folder_of(path), socket)?;
    }
    for path in &profile.writes {
        rules = allow(rules, path, AccessFs::from_all(KNOWN) & !AccessFs::Execute)?;
    }
    Ok(rules)
}

/// Adds a rule for a path, if the path exists.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    let Ok(fd) = PathFd::new(path) else { return Ok(rules) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(KNOWN) };
    rules.add_rule(PathBeneath::new(fd, access))
}

fn folder_of(socket: &Path) -> PathBuf {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or_else(|| PathBuf::from("."), Path::to_owned)
}
