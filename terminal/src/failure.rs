//! Failures of commands, with their exit codes.

/// Why a command ends without its result. The message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The scenario, or another argument, is wrong.
    #[error("{0}")]
    Scenario(String),
    /// This machine, or this process's permissions on it, do not allow the command. The message says what to type.
    #[error("{0}")]
    Cannot(String),
    /// The command ran, and one of its checks failed.
    #[error("{0}")]
    Check(String),
}

impl Failure {
    /// 1: a check failed; 2: a wrong argument; 3: this machine cannot run the command.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Check(_) => 1,
            Failure::Scenario(_) => 2,
            Failure::Cannot(_) => 3,
        }
    }

    /// Appends `words` to the message, on a new line.
    pub fn and(self, words: &str) -> Failure {
        let with = |text: String| format!("{text}\n{words}").trim_end().to_owned();
        match self {
            Failure::Scenario(text) => Failure::Scenario(with(text)),
            Failure::Cannot(text) => Failure::Cannot(with(text)),
            Failure::Check(text) => Failure::Check(with(text)),
        }
    }

    /// [`Failure::Cannot`] with the error's text.
    pub fn cannot(error: impl std::fmt::Display) -> Failure {
        Failure::Cannot(error.to_string())
    }
}

impl From<wave_process::outputs::OutputError> for Failure {
    fn from(error: wave_process::outputs::OutputError) -> Failure {
        match error.exit_code() {
            2 => Failure::Scenario(error.to_string()),
            _ => Failure::cannot(error),
        }
    }
}
