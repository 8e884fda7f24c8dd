//! What an agent gives up once it is set up.

use wave_confine::{Confined, Limited, Profile, Role};
use wave_links::say;

use crate::command::{AgentArgs, leave_with_parent};
use crate::registry::Registry;

/// What an agent without a front needs once it is attached.
pub(crate) fn profile(args: &AgentArgs) -> Profile {
    match &args.notes_from {
        None => Profile::of(Role::Agent),
        Some(socket) => Profile::of(Role::Front).with_socket(socket),
    }
}

/// Gives up all rights but the profile's, except filters of system calls. Nothing, for a registry whose agents keep them.
pub(crate) fn limit(
    registry: &Registry,
    args: &AgentArgs,
    profile: Profile,
) -> Result<Option<Limited>, (u8, String)> {
    if registry.keeps_rights() {
        return match args.user {
            None => Ok(None),
            Some(_) => {
                Err((2, "this agent keeps its rights: --user is for one that gives them up".into()))
            }
        };
    }
    let limited = profile.becoming(args.user).limit().map_err(|error| (3, error.to_string()))?;
    // The kernel forgets it with a change of users.
    if args.user.is_some() && args.leave_with_parent && !leave_with_parent() {
        return Err((0, "its parent has ended".to_owned()));
    }
    Ok(Some(limited))
}

/// The rest, once all threads of the set-up are there.
pub(crate) fn seal(limited: Option<Limited>, quiet: bool) -> Result<(), (u8, String)> {
    let Some(limited) = limited else { return Ok(()) };
    let Confined { seccomp, landlock } = limited.seal().map_err(|error| (3, error.to_string()))?;
    let missing = match (seccomp, landlock) {
        (true, true) => return Ok(()),
        (false, true) => "filter system calls",
        (true, false) => "hold a process to its folders",
        (false, false) => "filter system calls or hold a process to its folders",
    };
    if !quiet {
        say!(
            "wave agent: this kernel does not {missing} (`wave doctor`); capabilities are gone all the same"
        );
    }
    Ok(())
}
