//! A log file of an agent, for tracing and replay.

use std::io::Write;
use std::path::Path;

use wave_core::log::{Header, LogWriter};
use wave_links::say;

/// A recorder that writes a file.
pub type FileLog = LogWriter<Box<dyn FnMut(&[u8]) + Send>>;

/// Begins the log of one agent in a [new file](wave_links::places::new_file) at `path`.
///
/// The log is written by the agent's own thread, [`wave_core::log::BUFFER_BYTES`] at a time and
/// whenever the agent rests. If a write fails, one line on stderr says so, the log ends
/// there, and the agent keeps deciding.
pub fn record_to(path: &Path, header: &Header) -> std::io::Result<FileLog> {
    let mut file = Some(wave_links::places::new_file(path)?);
    let path = path.to_owned();
    let sink = move |bytes: &[u8]| {
        if let Some(open) = &mut file
            && let Err(error) = open.write_all(bytes)
        {
            say!("wave agent: the log {} ends early: {error}", path.display());
            file = None;
        }
    };
    Ok(LogWriter::new(header, Box::new(sink)))
}
