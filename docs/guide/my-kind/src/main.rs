//! Runs scenarios of every kind that Wave has, and of this crate's.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use wave_experiments::kinds::{Host, Kinds, Options, Wanted, run};

fn main() -> ExitCode {
    let (words, files): (Vec<_>, Vec<_>) =
        std::env::args_os().skip(1).partition(|word| word.to_string_lossy().starts_with("--"));
    let [file] = &files[..] else {
        eprintln!("my-kind: expected the file of a scenario, as docs/guide/my-kind/src/pipe.toml");
        return ExitCode::from(2);
    };
    let resume = words.iter().any(|word| word == "--resume");
    let wanted = Wanted { host: Host::User, quiet: false, live: false, record: None };
    let options = Options { wanted, out: Path::new("out"), resume, agent: None, json: false };
    let kinds = Kinds::default().with(&my_kind::KIND);
    run(&kinds, Path::new(file), &options).unwrap_or_else(|failure| {
        eprintln!("my-kind: {failure}");
        ExitCode::from(failure.exit_code())
    })
}
