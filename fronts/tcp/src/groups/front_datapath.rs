//! Flow groups as the data paths of a front: their threads, the memory of processes, and their end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wave_core::clock::Nanos;
use wave_links::LentPayload;
use wave_process::{cpus, say};
use wave_tcp::datapath::Datapath;
use wave_tcp::steering::Steering;
use wave_wires::{Frame, Wire};

use super::Groups;
use crate::front_datapath::FrontDatapath;

impl<W: Wire + Send + 'static, D: Datapath<Frame> + Send + 'static> FrontDatapath for Groups<W, D> {
    fn threads(&self) -> usize {
        self.groups.len()
    }

    fn begin(&mut self) -> io::Result<()> {
        for (at, group) in self.groups.iter_mut().enumerate() {
            let (shared, wire) = (Arc::clone(&group.shared), group.wire.clone());
            let start = self.start;
            let cpu = (!self.cpus.is_empty()).then(|| self.cpus[at % self.cpus.len()]);
            let thread = std::thread::Builder::new().name(format!("flow group {at}"));
            group.thread = Some(thread.spawn(move || {
                if let Some(Err(error)) = cpu.map(|cpu| cpus::pin(&[cpu])) {
                    say!("wave tcp: flow group {at} is not pinned: {error}");
                }
                shared.run(wire.as_deref(), start);
            })?);
        }
        self.runs = true;
        Ok(())
    }

    fn pause(&mut self) {
        self.suspend();
        (self.runs, self.receives) = (false, false);
    }

    fn unpause(&mut self) {
        self.receives = true;
        self.runs = self.groups.iter().all(|group| group.thread.is_some());
        self.release();
    }

    fn discard_held(&mut self, now: Nanos) {
        self.groups.iter().for_each(|group| group.shared.lock_engine().discard_held(now));
    }

    fn suspend(&self) {
        for group in &self.groups {
            let _engine = group.shared.lock_engine();
            group.shared.is_paused.store(true, Ordering::Relaxed);
        }
    }

    fn release(&self) {
        for group in &self.groups {
            group.shared.is_paused.store(!self.receives, Ordering::Relaxed);
            group.shared.bell.ring();
        }
    }

    fn add_process(&mut self, process: u16, payloads: Vec<LentPayload>) {
        for (group, payload) in self.groups.iter().zip(payloads) {
            let memory = &mut group.shared.lock_engine().memory.0;
            if memory.len() <= usize::from(process) {
                memory.resize_with(usize::from(process) + 1, || None);
            }
            memory[usize::from(process)] = Some(payload);
        }
    }

    fn remove_process(&mut self, process: u16) {
        for group in &self.groups {
            if let Some(memory) = group.shared.lock_engine().memory.0.get_mut(usize::from(process))
            {
                *memory = None;
            }
        }
    }

    fn failure(&self) -> Option<String> {
        self.groups.iter().find_map(|group| {
            let shared = &group.shared;
            if self.runs && shared.has_ended.load(Ordering::Acquire) {
                return Some("the thread of a flow group has ended unexpectedly".to_owned());
            }
            let has_failed = shared.has_failed.load(Ordering::Acquire);
            has_failed
                .then(|| shared.lock_engine().wire_port.failure().map(str::to_owned))
                .flatten()
        })
    }

    fn prepare_park(&mut self) {
        self.bell.prepare_park();
    }

    fn unpark(&mut self) {
        self.bell.unpark();
    }

    fn spread(&self) -> Option<(Steering, Vec<BorrowedFd<'_>>)> {
        let wires =
            self.groups.iter().filter_map(|group| group.wire.as_ref().map(|wire| wire.as_fd()));
        Some((self.steering, wires.collect()))
    }

    fn astray(&self) -> u64 {
        self.astray
    }
}

impl<W: Wire, D> Drop for Groups<W, D> {
    fn drop(&mut self) {
        for group in &mut self.groups {
            group.shared.is_to_end.store(true, Ordering::Relaxed);
            group.shared.bell.ring();
            if let Some(thread) = group.thread.take() {
                // A panic was printed.
                let _ = thread.join();
            }
        }
    }
}
