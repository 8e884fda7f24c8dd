//! Confines an agent after its set-up.

use wave_confine::{Confined, Limited, Profile, Role};
use wave_process::say;

use crate::command::{AgentArgs, leave_with_parent};
use crate::registry::Registry;

/// The profile of an attached agent without a front.
pub(crate) fn profile(args: &AgentArgs) -> Profile {
    match &args.notes_from {
        None => Profile::of(Role::Agent),
        Some(socket) => Profile::of(Role::Front).with_socket(socket),
    }
}

/// Gives up all rights but the profile's; [`seal`] adds the filter of system calls. `None` if the registry is unconfined.
pub(crate) fn limit(
    registry: &Registry,
    args: &AgentArgs,
    profile: Profile,
) -> Result<Option<Limited>, (u8, String)> {
    if registry.keeps_rights() {
        return match args.user {
            None => Ok(None),
            Some(_) => Err((
                2,
                "--user needs a confined agent, and this program leaves its agents unconfined"
                    .into(),
            )),
        };
    }
    let limited = profile.becoming(args.user).limit().map_err(|error| (3, error.to_string()))?;
    // Switching the user clears the parent-death signal.
    if args.user.is_some() && args.leave_with_parent && !leave_with_parent() {
        return Err((0, "its parent has ended".to_owned()));
    }
    Ok(Some(limited))
}

/// Installs the filter of system calls, once set-up has started all of its threads.
pub(crate) fn seal(limited: Option<Limited>, quiet: bool) -> Result<(), (u8, String)> {
    let Some(limited) = limited else { return Ok(()) };
    let Confined { seccomp, landlock } = limited.seal().map_err(|error| (3, error.to_string()))?;
    let missing = match (seccomp, landlock) {
        (true, true) => return Ok(()),
        (false, true) => "filter system calls",
        (true, false) => "restrict file access",
        (false, false) => "filter system calls or restrict file access",
    };
    if !quiet {
        say!(
            "wave agent: this kernel cannot {missing} (see `wave doctor`); capabilities are still given up"
        );
    }
    Ok(())
}
