//! Why a run did not come to an end.

pub use wave_lab::Failure;

use crate::report::ReportError;

impl From<ReportError> for Failure {
    fn from(error: ReportError) -> Failure {
        Failure::cannot(error)
    }
}
