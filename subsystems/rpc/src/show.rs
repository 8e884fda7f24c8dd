//! The display form of frames. They are not logged: a front's agent keeps no log of its calls.

use wave_core::subsystem::Show;

/// Display of the subsystem's entries, for [`crate::SUBSYSTEM`].
pub const SHOW: Show = Show { subject: "call", ..Show::PLAIN };
