//! `wave completions` and `wave man`: shell completions and man pages, generated from the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use wave_process::outputs::Output;
use wave_terminal::{Failure, out};

use super::Wave;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave completions bash > ~/.local/share/bash-completion/completions/wave
  wave completions zsh > ~/.zfunc/_wave        with `fpath+=~/.zfunc` before compinit in ~/.zshrc
  wave completions fish > ~/.config/fish/completions/wave.fish")]
pub struct CompletionsArgs {
    /// Shell to print completions for.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave man ~/.local/share/man/man1
  man wave-memory-run

Exit codes: 0 written; 3 the directory cannot be written.")]
pub struct ManArgs {
    /// Directory for the pages, one per command; created if absent.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn execute(args: &CompletionsArgs) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Wave::command(), "wave", &mut text);
    out!("{}", String::from_utf8_lossy(&text).trim_end());
    ExitCode::SUCCESS
}

pub fn execute_man(args: &ManArgs) -> Result<(), Failure> {
    let directory = &args.directory;
    let cannot =
        |error: std::io::Error| Failure::Cannot(format!("{}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(cannot)?;
    let mut whole = Wave::command().disable_help_subcommand(true);
    whole.build();
    let mut commands = vec![whole];
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned());
        let page = clap_mangen::Man::new(command);
        let mut text = Vec::new();
        page.render(&mut text).map_err(cannot)?;
        Output::below_a_folder(&directory.join(page.get_filename()))?.write(text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page_and_a_completion() {
        let folder = tempfile::tempdir().unwrap();
        let man = folder.path().join("man1");
        execute_man(&ManArgs { directory: man.clone() }).unwrap();
        let mut text = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Wave::command(), "wave", &mut text);
        let bash = String::from_utf8(text).unwrap();
        let command = Wave::command();
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let page = man.join(format!("wave-{}.1", sub.get_name()));
            let page =
                std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{page:?}: {error}"));
            assert!(page.contains("SYNOPSIS"), "{page}");
            assert!(bash.contains(&format!("wave,{})", sub.get_name())), "{}", sub.get_name());
        }
        assert!(man.join("wave-memory-run.1").is_file(), "subcommands have pages");
        assert!(!man.join("wave-rocksdb-process.1").exists(), "hidden commands have none");
    }
}
