//! Why a run did not come to an end, and with which exit code that is answered.

/// Why a command ends without its result.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The scenario, or another argument, cannot be meant so.
    #[error("{0}")]
    Scenario(String),
    /// This machine, or what this process may do on it, does not allow it. Says what to type.
    #[error("{0}")]
    Cannot(String),
    /// It ran, and what it was to show is not so.
    #[error("{0}")]
    Check(String),
}

impl Failure {
    /// 1: a check failed; 2: a bad scenario; 3: cannot run here.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Check(_) => 1,
            Failure::Scenario(_) => 2,
            Failure::Cannot(_) => 3,
        }
    }

    /// The same, and `words` on lines of their own.
    pub fn and(self, words: &str) -> Failure {
        let with = |text: String| format!("{text}\n{words}").trim_end().to_owned();
        match self {
            Failure::Scenario(text) => Failure::Scenario(with(text)),
            Failure::Cannot(text) => Failure::Cannot(with(text)),
            Failure::Check(text) => Failure::Check(with(text)),
        }
    }

    /// [`Failure::Cannot`] with the error's own words.
    pub fn cannot(error: impl std::fmt::Display) -> Failure {
        Failure::Cannot(error.to_string())
    }
}
