//! A log file of an agent, for tracing and replay.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::{FlockOperation, flock};
use wave_core::log::{Header, LogWriter};
use wave_process::outputs::{Output, OutputError};
use wave_process::say;

/// Takes the bytes of a log.
pub type LogSink = Box<dyn FnMut(&[u8]) + Send>;
/// A recorder that writes a file.
pub type FileLog = LogWriter<LogSink>;

/// Why a log ended before its agent, if it did.
#[derive(Clone, Debug, Default)]
pub struct LogEnd(Arc<OnceLock<OutputError>>);

impl LogEnd {
    /// The error of the write that failed.
    pub fn error(&self) -> Option<&OutputError> {
        self.0.get()
    }
}

/// Begins the log of one agent at `path`. It replaces an older file at once
/// ([`Output::below_a_folder`](wave_process::outputs::Output::below_a_folder)).
///
/// The log is written by the agent's own thread, [`wave_core::log::BUFFER_BYTES`] at a time and
/// whenever the agent rests. If a write fails, one line on stderr says so, the log ends
/// there, and the agent keeps deciding.
pub fn record_to(path: &Path, header: &Header) -> Result<FileLog, OutputError> {
    Ok(record_until_failure(path, header)?.0)
}

/// [`record_to`], and whether a write has failed.
pub(crate) fn record_until_failure(
    path: &Path,
    header: &Header,
) -> Result<(FileLog, LogEnd), OutputError> {
    let end = LogEnd::default();
    let sink = log_sink(path, end.clone())?;
    Ok((LogWriter::new(header, sink), end))
}

/// Writes a log's bytes to a file, until a write fails: `end` has the error from then on, and the file is closed. Until then it is
/// open with a shared lock (flock(2)).
///
/// # Errors
/// The file cannot be opened.
pub fn log_sink(path: &Path, end: LogEnd) -> Result<LogSink, OutputError> {
    let file = Output::below_a_folder(path)?.growing()?;
    // A run that started this agent sees by the lock whether the log still grows (LogEnd is in this process only).
    let _ = flock(&file, FlockOperation::NonBlockingLockShared);
    let mut file = Some(file);
    let path = path.to_owned();
    Ok(Box::new(move |bytes: &[u8]| {
        if let Some(open) = &mut file
            && let Err(source) = open.write_all(bytes)
        {
            let error = OutputError::Unwritable { path: path.clone(), source };
            say!("wave: the log ends early: {error}");
            let _ = end.0.set(error);
            file = None;
        }
    }))
}
