//! Packages of a Debian suite that this machine does not run, through a separate apt configuration:
//! its lists and files are all in one folder, and nothing is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::output_of;
use super::sources::{self, Source};

/// An apt that uses one suite of one mirror.
pub struct PrivateApt {
    folder: PathBuf,
}

impl PrivateApt {
    /// Reads a suite's package list from the first of this machine's mirrors that has it. The
    /// folder must exist.
    pub fn with_suite(folder: &Path, suite: &str) -> Result<Self, String> {
        let sources = sources::of_machine(Path::new("/etc/apt"));
        let mut refusals = Vec::new();
        for source in &sources {
            match Self::with_source(folder, source, suite) {
                Ok(apt) => return Ok(apt),
                Err(error) => refusals.push(format!("{}: {error}", source.uri)),
            }
        }
        if refusals.is_empty() {
            return Err("/etc/apt has no package source".into());
        }
        Err(format!("no mirror in /etc/apt has Debian's {suite}:\n{}", refusals.join("\n")))
    }

    fn with_source(folder: &Path, source: &Source, suite: &str) -> Result<Self, String> {
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
        };
        for name in ["lists/partial", "archives/partial", "parts"] {
            std::fs::create_dir_all(folder.join(name))
                .map_err(|error| format!("{name}: {error}"))?;
        }
        write("parts/debian.sources", &source.stanza(suite))?;
        write("status", "")?;
        write("apt.conf", &configuration(folder))?;
        let apt = Self { folder: folder.into() };
        output_of(apt.command("apt-get").args(["update", "-qq"]))?;
        Ok(apt)
    }

    /// Names of a package's direct dependencies.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>, String> {
        let output =
            output_of(self.command("apt-cache").args(["depends", "--important", package]))?;
        Ok(dependencies_in(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Downloads packages and unpacks them into one folder.
    pub fn unpack(&self, packages: &[String], into: &Path) -> Result<(), String> {
        let archives = self.folder.join("archives");
        let mut download = self.command("apt-get");
        output_of(download.args(["download", "-qq"]).args(packages).current_dir(&archives))?;
        let entries = std::fs::read_dir(&archives).map_err(|error| error.to_string())?;
        for archive in entries.flatten().map(|entry| entry.path()) {
            if archive.extension().is_some_and(|extension| extension == "deb") {
                output_of(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(into))?;
            }
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.folder.join("apt.conf")).env("LC_ALL", "C");
        command
    }
}

/// Apt reads this after the machine's own configuration, so the machine's proxies remain, but its
/// hooks, which would work on the machine's own files, do not.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "Dir::Etc::SourceList \"/dev/null\";\n\
         Dir::Etc::SourceParts \"{folder}/parts\";\n\
         Dir::Etc::Preferences \"/dev/null\";\n\
         Dir::Etc::PreferencesParts \"/dev/null\";\n\
         Dir::State::Lists \"{folder}/lists\";\n\
         Dir::State::Status \"{folder}/status\";\n\
         Dir::Cache \"{folder}\";\n\
         Dir::Cache::Archives \"{folder}/archives\";\n\
         APT::Sandbox::User \"root\";\n\
         APT::Update::Error-Mode \"any\";\n\
         #clear APT::Update::Pre-Invoke;\n\
         #clear APT::Update::Post-Invoke;\n\
         #clear APT::Update::Post-Invoke-Success;\n"
    )
}

fn dependencies_in(listing: &str) -> Vec<String> {
    let lines = listing.lines().map(|line| line.trim_start_matches([' ', '|']));
    lines.filter_map(|line| line.strip_prefix("Depends: ")).map(String::from).collect()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn reads_the_output_of_apt_cache() {
        let listing = "linux-image\n  PreDepends: linux-base\n |Depends: dracut\n\
                       \x20 Depends: linux-binary-7\n    dracut\n  Breaks: old\n";
        assert_eq!(dependencies_in(listing), ["dracut", "linux-binary-7"]);
    }
}
