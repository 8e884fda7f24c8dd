//! The command line of `cargo xtask vm`.

use std::path::PathBuf;
use std::time::Duration;

use super::Error;
use super::machine::{Copied, Wanted};

pub const USAGE: &str = "\
usage: cargo xtask vm fetch [--update]   get the kernel (or a newer one) and the tools
       cargo xtask vm test [PART]        run the tests that need the virtual machine, or those whose
                                         names contain PART
       cargo xtask vm icount [--json]    count instructions, ticks and exits of the kernel host
       cargo xtask vm run [OPTION]... -- COMMAND [ARGUMENT]...
         --cpus N                virtual CPUs (2; with --icount 1)
         --memory-mib N          memory (2048)
         --timeout SECONDS       end the guest after this time without output (300), or ten times that in all
         --icount                count instructions, of all CPUs, instead of time
         --append KERNEL_ARGS    add to the kernel's command line
         --module NAME           load a kernel module first, with its dependencies
         --nic FOLDER            add a PCI device (ivshmem-doorbell behind an IOMMU) whose other side is
                                 in FOLDER's files, for an agent here: wave agent --device FOLDER
         --with HOST_FILE[:GUEST_PATH]   put a copy into the guest's own memory
       The command runs as root, in this folder, over this machine's files; what it writes is lost
       and what it leaves running is killed. Its input is empty. Of the environment it gets PATH,
       HOME, USER, LANG, LC_*, TERM, TZ, RUST_* and WAVE_*.
       exit code: the command's; 124 after the --timeout; 125 if the virtual machine failed";

#[derive(Debug)]
pub enum Request {
    /// Fetch the kernel and install the tools.
    Fetch {
        /// Fetch even if there is a kernel already.
        update: bool,
    },
    Run(Wanted),
    Test {
        /// Run only tests whose names contain this.
        part: Option<String>,
    },
    /// Count instructions, ticks and exits.
    Icount {
        /// Print one object instead of a table.
        json: bool,
    },
}

/// Parses the arguments of `cargo xtask vm`.
pub fn parse(arguments: &[String]) -> Result<Request, Error> {
    let (name, rest) = arguments.split_first().ok_or_else(|| usage("a command is missing"))?;
    match (name.as_str(), rest) {
        ("fetch", []) => Ok(Request::Fetch { update: false }),
        ("fetch", [flag]) if flag == "--update" => Ok(Request::Fetch { update: true }),
        ("test", []) => Ok(Request::Test { part: None }),
        ("test", [part]) if !part.starts_with('-') => {
            Ok(Request::Test { part: Some(part.clone()) })
        }
        ("icount", []) => Ok(Request::Icount { json: false }),
        ("icount", [flag]) if flag == "--json" => Ok(Request::Icount { json: true }),
        ("run", options) => parse_run(options).map(Request::Run),
        _ => Err(usage(&format!("unknown command or arguments: {}", arguments.join(" ")))),
    }
}

fn parse_run(options: &[String]) -> Result<Wanted, Error> {
    let mut wanted = Wanted::default();
    let mut cpus = None;
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let mut value = || options.next().ok_or_else(|| usage(&format!("{option} needs a value")));
        match option.as_str() {
            "--cpus" => cpus = Some(number(option, value()?)?),
            "--memory-mib" => wanted.memory_mib = number(option, value()?)?,
            "--timeout" => {
                wanted.silence_max = Duration::from_secs(number(option, value()?)?.into());
            }
            "--icount" => wanted.icount = true,
            "--append" => wanted.append.push(value()?.clone()),
            "--module" => wanted.modules.push(value()?.clone()),
            "--nic" => wanted.nic = Some(PathBuf::from(value()?)),
            "--with" => wanted.copied.push(copied(value()?)),
            "--" => break,
            _ => return Err(usage(&format!("vm run has no option {option}"))),
        }
    }
    wanted.command = options.cloned().collect();
    if wanted.command.is_empty() {
        return Err(usage("the command is missing: write it after --"));
    }
    let usual = if wanted.icount { 1 } else { wanted.cpus };
    wanted.cpus = cpus.unwrap_or(usual);
    Ok(wanted)
}

fn number(option: &str, value: &str) -> Result<u32, Error> {
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(usage(&format!("{option} needs a number above 0, not {value:?}"))),
    }
}

fn copied(value: &str) -> Copied {
    let (from, to) = match value.split_once(':') {
        Some((from, to)) => (from, Some(PathBuf::from(to))),
        None => (value, None),
    };
    Copied { from: PathBuf::from(from), to }
}

fn usage(what: &str) -> Error {
    Error::Usage(what.into())
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, Error> {
        parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn reads_options_up_to_the_command() {
        let line = "run --cpus 4 --timeout 9 --with a:/b --append x=1 -- redis-server --port 1";
        let Ok(Request::Run(wanted)) = parsed(line) else { panic!("not a run") };
        assert_eq!((wanted.cpus, wanted.silence_max), (4, Duration::from_secs(9)));
        assert_eq!(wanted.copied, [Copied { from: "a".into(), to: Some("/b".into()) }]);
        assert_eq!(wanted.append, ["x=1"]);
        assert_eq!(wanted.command, ["redis-server", "--port", "1"]);
    }

    #[test]
    fn a_machine_with_icount_defaults_to_one_cpu() {
        for (line, cpus) in
            [("run -- ls", 2), ("run --icount -- ls", 1), ("run --cpus 3 --icount -- ls", 3)]
        {
            let Ok(Request::Run(wanted)) = parsed(line) else { panic!("not a run: {line}") };
            assert_eq!(wanted.cpus, cpus, "{line}");
        }
    }

    #[test]
    fn refuses_bad_arguments() {
        for line in [
            "",
            "run",
            "run --",
            "run ls",
            "run --cpus 0 -- ls",
            "run --cpus",
            "fetch x",
            "icount x",
        ] {
            assert!(matches!(parsed(line), Err(Error::Usage(_))), "{line}");
        }
    }
}
