//! Client of [`process`](super::process): RocksDB's process as the run sees it.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use super::process::{Order, Ready, Told};
use wave_apps::launch::{self, Process};
use wave_terminal::Failure;

/// Time allowed for the process to end after its input has.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// The process has precedence over others, as far as the kernel allows.
pub const NICE: i32 = -20;

/// RocksDB's process. Ends on drop, and when this process does.
#[derive(Debug)]
pub struct Served {
    process: Process,
    input: Option<ChildStdin>,
    told: Receiver<Told>,
}

impl Served {
    /// Starts the process, which begins to fill its database.
    pub fn start(order: &Order) -> Result<Served, Failure> {
        let starting = |error: std::io::Error| {
            Failure::Cannot(format!("RocksDB's process cannot be started: {error}"))
        };
        let mut command = launch::wave(["rocksdb-process"]).map_err(starting)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(&mut command).map_err(starting)?;
        // Threads started later inherit this.
        let nice = rustix::process::setpriority_process(Some(process.pid()), NICE);
        nice.map_err(|error| starting(error.into()))?;
        let output = process.output().expect("it is piped");
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(what) = serde_json::from_str(&line) else { break };
                if tell.send(what).is_err() {
                    break;
                }
            }
        });
        let mut served = Served { input: process.input(), process, told };
        let order = serde_json::to_string(order).map_err(Failure::cannot)?;
        served.write(&order)?;
        Ok(served)
    }

    pub fn pid(&self) -> i32 {
        self.process.pid().as_raw_pid()
    }

    fn write(&mut self, line: &str) -> Result<(), Failure> {
        let Some(input) = &mut self.input else { return Ok(()) };
        writeln!(input, "{line}")
            .map_err(|error| Failure::Cannot(format!("RocksDB's process does not listen: {error}")))
    }

    /// Waits until the database is filled; polls `is_over` for whether to give up.
    pub fn ready(
        &mut self,
        mut is_over: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Ready, Failure> {
        loop {
            is_over()?;
            if let Some(Told::Ready(ready)) = self.next_report(Duration::from_millis(100))? {
                return Ok(ready);
            }
        }
    }

    pub fn begin(&mut self) -> Result<(), Failure> {
        self.write("begin")
    }

    /// Returns the next report within `patience`.
    pub fn next_report(&self, patience: Duration) -> Result<Option<Told>, Failure> {
        match self.told.recv_timeout(patience) {
            Ok(Told::Failed(why)) => Err(Failure::Cannot(format!("RocksDB's process: {why}"))),
            Ok(told) => Ok(Some(told)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::Cannot("RocksDB's process ended unexpectedly".to_owned()))
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.input.take());
        // If it has not ended by then, it is killed on drop.
        self.process.wait_for_end(END_PATIENCE);
    }
}
