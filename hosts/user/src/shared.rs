//! State that all threads of one enclave share: cores, outside threads and the control thread.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;
use wave_core::host::{Context, Signals};
use wave_core::layout::Config;
use wave_core::link::Doorbell;
use wave_core::message::TxnId;
use wave_core::snapshot::CoreRecord;
use wave_links::{AnyPort, EventFd};
use wave_sched::mechanism::fallback::Fallback;
use wave_sched::wire::Event;

use crate::barrier;
use crate::door::Incarnation;
use crate::enclave::Options;
use crate::fiber::Fibers;
use crate::klt::{self, Klts};
use crate::stalls::{Stalls, Worst};
use crate::stats::{Counters, EnclaveStats, Mode};
use crate::table::{Slot, Table};

/// Locks, ignoring poison: a panic while the lock was held leaves nothing half done in these structures.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that a core shares with other threads.
#[repr(align(128))]
pub(crate) struct CoreShared {
    /// run << 32 | asks << 24 | txn, as of the core's last switch.
    record: AtomicU64,
    /// The epoch of the link that the core uses.
    pub(crate) epoch: AtomicU64,
    /// Whether the core sleeps or is about to sleep.
    pub(crate) sleeps: AtomicBool,
    /// Non-zero while a kernel-level thread has the core. The core's own pthread sleeps on this word.
    pub(crate) away: AtomicU32,
    /// Id of that thread's pthread, or 0.
    pub(crate) runner: AtomicI32,
    /// Thread id of the core's own pthread; 0 before it runs.
    pub(crate) tid: AtomicI32,
    /// The id of the current thread, or of the last one.
    pub(crate) runs: AtomicU32,
    signal: libc::c_int,
    /// Where the longest deferral was.
    pub(crate) worst: Worst,
    /// Bell that wakes the core from within the host. No agent has it.
    pub(crate) bell: EventFd,
    pub(crate) counters: Counters,
}

impl CoreShared {
    pub(crate) fn new(signal: libc::c_int) -> std::io::Result<CoreShared> {
        Ok(CoreShared {
            away: AtomicU32::new(0),
            runner: AtomicI32::new(0),
            tid: AtomicI32::new(0),
            runs: AtomicU32::new(0),
            signal,
            worst: Worst::default(),
            record: AtomicU64::new(1 << 24),
            epoch: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            bell: EventFd::new()?,
            counters: Counters::default(),
        })
    }

    #[inline]
    pub(crate) fn set_record(&self, record: CoreRecord) {
        let word = u64::from(record.run) << 32
            | u64::from(record.asks) << 24
            | u64::from(record.txn.number());
        self.record.store(word, Ordering::Release);
    }

    pub(crate) fn record(&self) -> CoreRecord {
        let word = self.record.load(Ordering::Acquire);
        CoreRecord {
            run: (word >> 32) as u32,
            txn: TxnId::new(word as u32),
            asks: word & 1 << 24 != 0,
        }
    }

    /// Makes the core look again, as it has to stop or adopt another window.
    pub(crate) fn ring(&self) {
        self.bell.ring();
        let runner = self.runner.load(Ordering::SeqCst);
        if runner != 0 {
            klt::interrupt(runner, self.signal);
        }
    }
}

/// An outside thread's way to the agent.
pub(crate) struct Outside {
    pub(crate) link: Option<(AnyPort, Context, Arc<Incarnation>)>,
}

/// State that all threads of an enclave share.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) table: Arc<Table>,
    pub(crate) fibers: Fibers,
    pub(crate) klts: Klts,
    /// The signal that preempts threads.
    pub(crate) signal: libc::c_int,
    pub(crate) stalls: Stalls,
    pub(crate) free: ArrayQueue<u32>,
    pub(crate) cores: Vec<CoreShared>,
    pub(crate) outside: Vec<Mutex<Outside>>,
    /// Bumped whenever `incarnation` changes. A core whose own epoch differs adopts the new window.
    pub(crate) epoch: AtomicU64,
    pub(crate) incarnation: Mutex<Option<Arc<Incarnation>>>,
    pub(crate) fallback: Fallback,
    pub(crate) prefetches: bool,
    pub(crate) yields_cpu: bool,
    pub(crate) overflows: AtomicU64,
    /// A request to turn the agent out.
    pub(crate) kill: AtomicBool,
    pub(crate) stop: AtomicBool,
    pub(crate) control_bell: EventFd,
    pub(crate) agents: Mutex<AgentCounters>,
}

/// Counters that the control thread writes.
#[derive(Clone, Copy, Default)]
pub(crate) struct AgentCounters {
    pub(crate) attached: u64,
    pub(crate) lost: u64,
    pub(crate) barks: u64,
    pub(crate) faults: u64,
    pub(crate) snapshots: u64,
}

impl Shared {
    pub(crate) fn new(
        name: String,
        config: Config,
        spawners: usize,
        options: &Options,
    ) -> std::io::Result<Shared> {
        let signal = options.signal;
        let table = Arc::new(Table::new(config.subjects, Slot::new));
        let count = config.subjects as usize;
        let free = ArrayQueue::new(count);
        for id in 0..config.subjects {
            let _ = free.push(id);
        }
        Ok(Shared {
            name,
            fibers: Fibers::new(&table, count, options.stack_bytes)?,
            klts: Klts::new(options.kernel_threads),
            signal,
            stalls: Stalls::default(),
            table,
            free,
            cores: (0..config.cores).map(|_| CoreShared::new(signal)).collect::<Result<_, _>>()?,
            outside: (0..spawners).map(|_| Mutex::new(Outside { link: None })).collect(),
            epoch: AtomicU64::new(0),
            incarnation: Mutex::new(None),
            fallback: Fallback::new(config.subjects),
            prefetches: options.prefetch,
            yields_cpu: options.yields_cpu,
            overflows: AtomicU64::new(0),
            kill: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            control_bell: EventFd::new()?,
            agents: Mutex::new(AgentCounters::default()),
            config,
        })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.fallback.mode()
    }

    /// Lets the host decide from now on.
    pub(crate) fn enter_fallback(&self) {
        self.fallback.enter(&self.table, barrier::for_all_threads);
        self.cores.iter().for_each(CoreShared::ring);
    }

    /// Call after a thread has become runnable.
    #[inline]
    pub(crate) fn became_runnable(&self, event: &Event) {
        if self.fallback.became_runnable(event)
            && let Some(core) = self.sleeper()
        {
            core.ring();
        }
    }

    /// Wakes a core that sleeps, if threads wait: several that became runnable at once may all have rung the same core.
    pub(crate) fn share_fallback(&self) {
        if let Some(core) = self.sleeper()
            && self.fallback.has_waiting()
        {
            core.ring();
        }
    }

    fn sleeper(&self) -> Option<&CoreShared> {
        self.cores.iter().find(|core| core.sleeps.load(Ordering::SeqCst))
    }

    /// Carries out a context's signals.
    #[cold]
    pub(crate) fn obey(&self, signals: Signals, incarnation: &Incarnation) {
        if signals.ring_agent() {
            incarnation.agent_bell.ring();
        }
        if signals.lost() {
            self.overflows.fetch_add(1, Ordering::Relaxed);
            if !incarnation.lost.swap(true, Ordering::SeqCst) {
                self.control_bell.ring();
            }
        }
        if signals.fault() && incarnation.fault.note(signals.seen()) {
            self.control_bell.ring();
        }
    }

    /// Sends a message from a thread that is no core.
    pub(crate) fn send_from_outside(&self, at: usize, event: &Event) {
        let mut outside = lock(&self.outside[at]);
        if let Some((port, context, incarnation)) = &mut outside.link {
            context.send(port, &event.to_message());
            let signals = context.take_signals();
            if !signals.is_empty() {
                self.obey(signals, incarnation);
            }
        }
    }

    /// Counters of the enclave and of each core.
    pub(crate) fn stats(&self) -> EnclaveStats {
        let AgentCounters { attached, lost, barks, faults, snapshots } = *lock(&self.agents);
        EnclaveStats {
            cores: self.cores.iter().map(|core| core.counters.read()).collect(),
            mode: self.mode(),
            agents: attached,
            lost_agents: lost,
            barks,
            faults,
            snapshots,
            overflows: self.overflows.load(Ordering::Relaxed),
        }
    }

    /// Tells the agent of a thread that was woken from outside a core.
    pub(crate) fn woken_from_outside(&self, event: &Event) {
        self.send_from_outside(0, event);
        self.became_runnable(event);
    }
}
