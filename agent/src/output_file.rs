//! The type of an option that names a file to write.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser, ValueParser, ValueParserFactory};
use clap::error::{Error, ErrorKind};
use clap::{ArgMatches, Id};
use wave_process::outputs::{Output, OutputError};

/// A file that a command writes, as its user named it. A path that must not be overwritten (a directory, a socket, a block device)
/// is refused when the command line is parsed. [`checked`] refuses inputs of the same command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFile(PathBuf);

impl OutputFile {
    /// The path, as it was given.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Finds the file.
    ///
    /// # Errors
    /// As [`Output::named`].
    pub fn find(&self) -> Result<Output, OutputError> {
        Output::named(&self.0)
    }

    fn parse(path: PathBuf) -> Result<OutputFile, OutputError> {
        match Output::named(&path) {
            Err(error @ OutputError::Refused { .. }) => Err(error),
            // The command reports a file that cannot be written, with its exit code.
            Ok(_) | Err(OutputError::Unwritable { .. }) => Ok(OutputFile(path)),
        }
    }
}

impl ValueParserFactory for OutputFile {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        ValueParser::new(PathBufValueParser::new().try_map(OutputFile::parse))
    }
}

/// Passes a parsed command line on, unless one of its [`OutputFile`]s is a file that another argument names: an input of the
/// same command.
///
/// # Errors
/// An output is also an input. The error is that of a wrong argument.
pub fn checked(matches: ArgMatches) -> Result<ArgMatches, Error> {
    let (mut outputs, mut others) = (Vec::new(), Vec::new());
    collect(&matches, &mut outputs, &mut others);
    for output in outputs {
        // An output that cannot be found is reported when it is opened.
        let Ok(output) = output.find() else { continue };
        for other in &others {
            output
                .refuse_input(Path::new(other))
                .map_err(|error| Error::raw(ErrorKind::ValueValidation, format!("{error}\n")))?;
        }
    }
    Ok(matches)
}

/// The outputs of a command line, and the words of its other arguments.
fn collect(matches: &ArgMatches, outputs: &mut Vec<OutputFile>, others: &mut Vec<OsString>) {
    for id in matches.ids() {
        match matches.try_get_many::<OutputFile>(id.as_str()) {
            Ok(found) => outputs.extend(found.into_iter().flatten().cloned()),
            // A group's values are the names of its arguments, a flag's are true and false.
            Err(_) if is::<Id>(matches, id) || is::<bool>(matches, id) => {}
            Err(_) => {
                let raw = matches.try_get_raw(id.as_str()).ok().flatten();
                others.extend(raw.into_iter().flatten().map(OsString::from));
            }
        }
    }
    if let Some((_, of_subcommand)) = matches.subcommand() {
        collect(of_subcommand, outputs, others);
    }
}

/// Whether the values of an argument or a group are of this type.
fn is<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, id: &Id) -> bool {
    matches.try_get_many::<T>(id.as_str()).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::{Args, CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    #[allow(dead_code, reason = "only parsed")]
    struct Line {
        #[command(subcommand)]
        command: Sub,
    }

    #[derive(Debug, clap::Subcommand)]
    #[allow(dead_code, reason = "only parsed")]
    enum Sub {
        Convert(Convert),
    }

    #[derive(Args, Debug)]
    #[allow(dead_code, reason = "only parsed")]
    #[command(group = clap::ArgGroup::new("what").args(["input", "command"]).multiple(true))]
    struct Convert {
        input: PathBuf,
        #[arg(long)]
        quiet: bool,
        #[arg(long)]
        out: Option<OutputFile>,
        #[arg(last = true)]
        command: Vec<OsString>,
    }

    fn refusal(words: &[&str]) -> Option<String> {
        let matches = Line::command().try_get_matches_from([&["x", "convert"], words].concat());
        matches.and_then(checked).err().map(|error| error.to_string())
    }

    #[test]
    fn an_output_that_another_argument_names_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (log, link, other) = (path("log"), path("link"), path("other"));
        fs::write(&log, "log").unwrap();
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&log, &link).unwrap();
        assert!(refusal(&[&log, "--out", &link]).unwrap().contains("is an input"));
        assert!(refusal(&[&other, "--out", &log, "--", &link]).unwrap().contains("is an input"));
        assert_eq!(refusal(&[&log, "--out", &other]), None);
        assert_eq!(refusal(&[&log, "--out", &path("new")]), None);
        assert_eq!(refusal(&[&log]), None);
        // The words include neither the name of a group's argument nor a flag's value.
        let words = ["x", "convert", &log, "--quiet", "--out", "input"];
        let (mut outputs, mut others) = (Vec::new(), Vec::new());
        collect(&Line::command().get_matches_from(words), &mut outputs, &mut others);
        assert_eq!(others, [OsString::from(&log)]);
        let folder = refusal(&[&log, "--out", &folder.path().display().to_string()]).unwrap();
        assert!(folder.contains("'--out <OUT>'") && folder.contains("is a directory"), "{folder}");
    }
}
