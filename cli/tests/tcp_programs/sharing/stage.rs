//! Where programs are played: an agent, the compiled player, and the tokens by which its processes take turns.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process_group};
use wave_skip::skip;

use super::model::{Step, TEST};
use crate::network::Up;

const PROGRAM: &str = include_str!("sharing.c");
const LOOPBACK: &str = "127.0.0.1";

/// A process with all its descendants, killed on drop.
#[derive(Debug)]
pub struct Group(Child);

impl Group {
    /// Kills all of them, unless they have ended.
    pub fn kill(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Stage {
    pub up: Up,
    folder: PathBuf,
}

/// A program that is being played.
pub struct Scene {
    tokens: Vec<File>,
    out: PathBuf,
    notes: PathBuf,
    /// The processes that share sockets.
    pub actors: Group,
    _peer: Group,
}

impl Stage {
    /// `None` without a C compiler that links statically.
    pub fn new() -> Option<Stage> {
        let up = Up::new();
        let folder = up.path("sharing");
        fs::create_dir(&folder).unwrap();
        let source = folder.join("sharing.c");
        fs::write(&source, PROGRAM).unwrap();
        for (name, options) in [("dynamic", &["-O1"][..]), ("static", &["-O1", "-static"])] {
            let mut compiler = Command::new("cc");
            compiler.args(options).arg("-o").arg(folder.join(name)).arg(&source);
            if !compiler.status().is_ok_and(|built| built.success()) {
                skip("no C compiler that links statically: apt-get install gcc libc6-dev");
                return None;
            }
        }
        for at in 0..=TEST {
            let path = folder.join(format!("token{at}"));
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        Some(Stage { up, folder })
    }

    /// Starts the processes that play these steps over the agent or over Linux. They wait for the first token.
    pub fn start(&self, steps: &[Step], is_over: bool) -> Scene {
        let script: String = steps.iter().map(|step| format!("{step}\n")).collect();
        let [out, notes] = ["out", "notes"].map(|name| self.folder.join(name));
        fs::write(self.folder.join("script"), script).unwrap();
        fs::write(&out, "").unwrap();
        fs::write(&notes, [0; 64]).unwrap();
        let program = self.folder.join("dynamic");
        let (program, folder) = (program.to_str().unwrap(), self.folder.to_str().unwrap());
        let [own, peers] = if is_over { ["10.77.0.2", "10.77.0.1"] } else { [LOOPBACK, LOOPBACK] };
        let mut actors = match is_over {
            true => self.up.over(&[program]),
            false => Command::new(program),
        };
        let said = File::create(self.up.path("said")).unwrap();
        actors.args(["play", folder, own, peers]).stdin(Stdio::null()).stdout(Stdio::null());
        actors.stderr(said).process_group(0);
        let mut peer = Command::new(program);
        peer.args(["peer", folder, peers, own]).stdin(Stdio::null()).process_group(0);
        let token = |at| {
            let path = self.folder.join(format!("token{at}"));
            File::options().read(true).write(true).open(path).unwrap()
        };
        let tokens = (0..=TEST).map(token).collect();
        let [actors, peer] = [actors, peer].map(|mut command| Group(command.spawn().unwrap()));
        Scene { tokens, out, notes, actors, _peer: peer }
    }

    /// Plays steps over the agent or over Linux. What was seen, by step. An error: it hangs.
    pub fn play(
        &mut self,
        steps: &[Step],
        is_over: bool,
        patience: Duration,
    ) -> Result<Vec<String>, Vec<String>> {
        let scene = self.start(steps, is_over);
        let is_done = self.lead(steps, &scene, is_over, patience);
        let out = scene.out.clone();
        drop(scene);
        let seen = by_step(&fs::read_to_string(out).unwrap(), steps.len());
        if is_done { Ok(seen) } else { Err(seen) }
    }

    /// Gives the first token, and replaces the agent when the program says so. Whether the program came to its end.
    fn lead(&mut self, steps: &[Step], scene: &Scene, is_over: bool, patience: Duration) -> bool {
        scene.give(steps[0].actor, 0);
        while let Some(at) = scene.await_token(patience) {
            if at as usize == steps.len() {
                return true;
            }
            if is_over {
                self.up.replace();
            }
            scene.give(steps[at as usize + 1].actor, at + 1);
        }
        false
    }

    /// What the library has said in the last play.
    pub fn said(&self) -> String {
        fs::read_to_string(self.up.path("said")).unwrap_or_default()
    }
}

impl Scene {
    /// Lets an actor play a step.
    pub fn give(&self, actor: usize, step: i32) {
        (&self.tokens[actor]).write_all(&step.to_ne_bytes()).unwrap();
    }

    /// The next step of the test. `None`: nothing was seen for a long time.
    pub fn await_token(&self, patience: Duration) -> Option<i32> {
        let (mut length, mut since) = (0, Instant::now());
        let mut polled = [PollFd::new(&self.tokens[TEST], PollFlags::IN)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        while poll(&mut polled, Some(&second)).unwrap() == 0 {
            let now = fs::metadata(&self.out).unwrap().len();
            if now > length {
                (length, since) = (now, Instant::now());
            } else if since.elapsed() > patience {
                return None;
            }
        }
        let mut step = [0; 4];
        (&self.tokens[TEST]).read_exact(&mut step).unwrap();
        Some(i32::from_ne_bytes(step))
    }

    /// The process that plays an actor.
    pub fn process(&self, actor: usize) -> Option<Pid> {
        let notes = fs::read(&self.notes).unwrap();
        let at = 4 * (8 + actor);
        Pid::from_raw(i32::from_ne_bytes(notes[at..at + 4].try_into().unwrap()))
    }

    /// Everything that was seen so far.
    pub fn seen(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }
}

/// Lines by the number at their start.
fn by_step(seen: &str, count: usize) -> Vec<String> {
    let mut all = vec![String::new(); count];
    for line in seen.lines() {
        if let Some((at, saw)) = line.split_once(' ')
            && let Some(place) = at.parse().ok().and_then(|at: usize| all.get_mut(at))
        {
            place.push_str(saw);
        }
    }
    all
}
