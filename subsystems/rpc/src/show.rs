//! How frames are shown to people. They are not logged: a front's agent has no log of its calls.

use wave_core::subsystem::Show;

/// See [`crate::SUBSYSTEM`].
pub const SHOW: Show = Show { subject: "call", ..Show::PLAIN };
