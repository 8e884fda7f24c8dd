//! The live view of a run: what decides, the cores' states, and the latencies so far.
//!
//! A thread of its own samples the running system a few times a second and draws. It shares CPUs with the generator and the
//! agent, so a watched run's figures are a little worse.

mod view;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use wave_process::cpus;
use wave_user::Enclave;
use wave_workloads::cpu;

use crate::ground::Work;
use view::View;

const POLL_EVERY: Duration = Duration::from_millis(400);

/// The system that runs now. The run sets it; the view reads it.
#[derive(Clone, Debug, Default)]
pub struct Feed(Arc<Mutex<Watched>>);

#[derive(Clone, Debug, Default)]
struct Watched {
    title: String,
    step: String,
    enclaves: Vec<Weak<Enclave>>,
    work: Weak<Work>,
}

impl Feed {
    fn change(&self, change: impl FnOnce(&mut Watched)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn title(&self, title: &str) {
        self.change(|watched| watched.title = title.to_owned());
    }

    pub fn step(&self, step: &str) {
        self.change(|watched| watched.step = step.to_owned());
    }

    /// Sets the enclaves and work to show, until they end.
    pub fn watch(&self, enclaves: Vec<Weak<Enclave>>, work: &Arc<Work>) {
        self.change(|watched| {
            watched.enclaves = enclaves;
            watched.work = Arc::downgrade(work);
        });
    }
}

/// A live view; restores the terminal on drop.
#[derive(Debug)]
pub struct Live {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Takes over the terminal. Fails if standard output is not a terminal.
    pub fn start(feed: Feed) -> Result<Live, String> {
        if !std::io::stdout().is_terminal() {
            return Err("--live draws on a terminal, and standard output is none: leave --live \
                        out, or do not redirect the output"
                .into());
        }
        let mut terminal = ratatui::try_init().map_err(|error| format!("--live: {error}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let body = move || {
            // The first CPU is the generator's (see `run::seating`); any other will do.
            if let Ok(cpus) = cpus::allowed() {
                let _ = cpus::pin(&[cpus[0]]);
            }
            let mut before = View::default();
            while !stopped.load(Ordering::SeqCst) {
                let view = snapshot(&feed, &before);
                if terminal.draw(|frame| view::draw(frame, &view)).is_err() {
                    break;
                }
                before = view;
                if wants_to_leave() {
                    // In raw mode, Ctrl-C raises no signal.
                    let _ = signal_hook::low_level::raise(signal_hook::consts::SIGINT);
                    break;
                }
            }
            ratatui::restore();
        };
        let thread = std::thread::Builder::new().name("wave-live".into()).spawn(body);
        let thread = thread.map_err(|error| {
            ratatui::restore();
            format!("--live: {error}")
        })?;
        Ok(Live { stop, thread: Some(thread) })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn snapshot(feed: &Feed, before: &View) -> View {
    let watched = feed.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let enclaves: Vec<_> = watched.enclaves.iter().filter_map(Weak::upgrade).collect();
    let stats = enclaves.iter().map(|enclave| (enclave.stats(), enclave.alive())).collect();
    let recorded = watched.work.upgrade().map(|work| work.recorder.collect());
    let titles = (watched.title, watched.step);
    View::new(titles, cpu::monotonic_ns(), stats, recorded.as_ref(), before)
}

/// Waits for the next update. Returns whether `q` or Ctrl-C was pressed meanwhile.
fn wants_to_leave() -> bool {
    match event::poll(POLL_EVERY) {
        Ok(true) => match event::read() {
            Ok(Event::Key(key)) => {
                let interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
                key.code == KeyCode::Char('q') || interrupt && key.code == KeyCode::Char('c')
            }
            _ => false,
        },
        Ok(false) => false,
        Err(_) => {
            std::thread::sleep(POLL_EVERY);
            false
        }
    }
}
