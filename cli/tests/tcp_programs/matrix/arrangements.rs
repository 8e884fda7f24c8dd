//! Sessions of a server and a client, of which either one is over the agent, while the other one is over Linux.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::matrix::transcript::Transcript;
use crate::matrix::{Program, Site, Tree, USUAL};
use crate::network::{Up, has, in_a_network};

/// Who is over the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Nobody,
    Server,
    Client,
}

/// A server's and a client's place, which share a folder.
pub struct Arrangement<'a> {
    over: Over,
    server: Site<'a>,
    client: Site<'a>,
}

impl<'a> Arrangement<'a> {
    fn new(up: &'a Up, over: Over) -> Arrangement<'a> {
        let folder = up.path(&format!("{over:?}"));
        fs::create_dir(&folder).unwrap();
        let site =
            |is_over: bool, folder: PathBuf| Site { up, is_over, folder, port: 0, connections: 0 };
        let server = site(over == Over::Server, folder.clone());
        Arrangement { over, server, client: site(over == Over::Client, folder) }
    }

    /// The server's address.
    pub fn ip(&self) -> String {
        self.server.ip().to_string()
    }

    /// Path of a file in the folder.
    pub fn file(&self, name: &str) -> String {
        self.server.file(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        self.server.write(name, text)
    }

    /// Starts a server, and waits until it accepts connections at this port.
    pub fn serve(&self, port: u16, words: &[&str]) -> Tree {
        let program = Program { port, ..USUAL };
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Site { folder: self.server.folder.clone(), port, ..self.server }.start(&program, &words)
    }

    /// A client's command.
    pub fn client(&self, words: &[&str]) -> Command {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut command = self.client.command(&words, None);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a client and adds its output, in which the folder is masked.
    pub fn record(&self, transcript: &mut Transcript, command: &mut Command) {
        let output = command.output().unwrap();
        let folder = self.server.folder.to_str().unwrap();
        for (title, bytes) in [("output", output.stdout), ("errors", output.stderr)] {
            let said = String::from_utf8_lossy(&bytes).replace(folder, "FOLDER");
            transcript.add(title, said.as_bytes());
        }
        transcript.add("status", format!("{:?}", output.status.code()).as_bytes());
    }

    /// Asserts that two files have the same bytes, and are not empty.
    pub fn same(&self, one: &str, other: &str) {
        let [left, right] = [one, other].map(|name| fs::read(self.file(name)).unwrap());
        let bytes = [left.len(), right.len()];
        assert!(left == right && !left.is_empty(), "{:?}: {one}, {other}: {bytes:?}", self.over);
    }
}

/// Runs a session over Linux, with its server over the agent, and with its client. Each has the same transcript.
pub fn compare(
    programs: &'static [(&'static str, &'static str)],
    session: fn(&Arrangement, &mut Transcript),
) {
    in_a_network(move || {
        if !programs.iter().all(|(program, package)| has(program, package)) {
            return;
        }
        let up = Up::new();
        let [theirs, server, client] = [Over::Nobody, Over::Server, Over::Client].map(|over| {
            let mut transcript = Transcript::new();
            session(&Arrangement::new(&up, over), &mut transcript);
            transcript
        });
        theirs.expect(&server, "over Linux, and with the server over the agent");
        theirs.expect(&client, "over Linux, and with the client over the agent");
        for counter in ["PassiveOpens", "ActiveOpens"] {
            up.awaits(counter, 1);
        }
    });
}
