//! Tests the BPF program's queues against wave-core's: after each operation on both, both windows must have the
//! same words. Runs wherever BPF programs may be loaded; it does not need sched_ext.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock};

use proptest::collection::vec;
use proptest::prelude::*;
use wave_core::clock::Nanos;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::host::{Context, HostCore, Mechanism as Checks, Next, Signals};
use wave_core::link::{Home, LINE_WORDS, Port, Side, Window as _};
use wave_core::message::{Decision, FLAG_ATOMIC, Message};
use wave_core::queue::{PushError, Tag};
use wave_links::memory::Memory;
use wave_links::shm::ShmPort;
use wave_sched::wire::DECISION_RUN;
use wave_skip::skip;

use wave_core::layout::{Config, Layout};

use super::super::places::Behind;
use super::super::shared::{DISPATCH, Entry, REFUSE, SEND, Step};
use super::*;

const CORES: u16 = 2;
/// Two cores and a CPU outside the enclave; the program does not use the control context's queue.
const CONTEXTS: usize = 3;

#[derive(Clone, Debug)]
enum Operation {
    /// A context sends a message.
    Send { context: usize, message: Message },
    /// The agent leaves a decision whose outcome is `code`.
    Decide { core: usize, kind: u16, flags: u8, code: Code },
    /// The agent leaves an invalid decision.
    Nonsense { core: usize },
    /// The agent writes the last word of an entry of a future lap in the place of the next entry.
    TooEarly { core: usize, laps: u64 },
    /// The agent takes messages.
    Listen { context: usize, entries: usize },
    /// The agent stores a wrong credit, too high or too low.
    Credit { context: usize, value: u64 },
    /// A core looks for a decision, and asks if there is none.
    Dispatch { core: usize },
    /// A core is offline, and another CPU answers the decisions left for it.
    Offline { core: usize },
    /// Another agent attaches.
    Attach,
}

/// An entry left for a core, with its outcome if it is a decision.
#[derive(Clone, Copy)]
struct Left(Option<Code>);

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let core = || 0..usize::from(CORES);
    let context = || 0..CONTEXTS;
    let codes: Vec<Code> = [
        Code::TargetOnCpu,
        Code::TargetStale,
        Code::TargetNotFound,
        Code::TargetNotRunnable,
        Code::CpuOffline,
        Code::CpuUnavailable,
        Code::Affinity,
    ]
    .into();
    let code = prop_oneof![2 => Just(Code::Complete), 1 => prop::sample::select(codes)];
    let kind = prop_oneof![7 => Just(DECISION_RUN), 1 => any::<u16>()];
    let flags = prop_oneof![7 => Just(0), 1 => Just(FLAG_ATOMIC), 1 => any::<u8>()];
    let message = (1..8u16, any::<[u64; 3]>(), any::<u32>()).prop_map(|(kind, payload, number)| {
        let subject = Subject::from_word(payload[0]);
        Message { kind, subject, sequence: Sequence(number), argument: !number, payload }
    });
    let operation = prop_oneof![
        8 => (context(), message).prop_map(|(context, message)| Operation::Send { context, message }),
        8 => (core(), kind, flags, code)
            .prop_map(|(core, kind, flags, code)| Operation::Decide { core, kind, flags, code }),
        1 => core().prop_map(|core| Operation::Nonsense { core }),
        1 => (core(), 1..9u64).prop_map(|(core, laps)| Operation::TooEarly { core, laps }),
        4 => (context(), 1..6usize)
            .prop_map(|(context, entries)| Operation::Listen { context, entries }),
        1 => (context(), 0..40u64).prop_map(|(context, value)| Operation::Credit { context, value }),
        8 => core().prop_map(|core| Operation::Dispatch { core }),
        1 => core().prop_map(|core| Operation::Offline { core }),
        1 => Just(Operation::Attach),
    ];
    vec(operation, 1..120)
}

/// One window, and an agent's ends in it.
struct Ends {
    port: ShmPort,
    messages: Vec<Receiver>,
    decisions: Vec<Sender>,
}

impl Ends {
    fn new(layout: &Layout, memory: &Arc<Memory>) -> Ends {
        Ends {
            port: ShmPort::new(memory),
            messages: layout.messages.iter().map(|at| Receiver::new(at, Side::Agent)).collect(),
            decisions: layout.decisions.iter().map(|at| Sender::new(at, Side::Agent)).collect(),
        }
    }
}

/// The BPF program, loaded for the test, and its maps.
struct Program {
    layout: Layout,
    object: Object,
    control: Table<Control>,
    cores: Table<shared::Core>,
    windows: MapHandle,
}

impl Program {
    fn load() -> Program {
        let mut config = Config::coherent(CORES);
        config.contexts = 2;
        config.subjects = 8;
        config.prestage = 0;
        config.messages.entries = 8;
        config.decisions.entries = 8;
        // Neither side parks: the program leaves that to the kernel's callbacks.
        config.spin = Nanos(u64::MAX);
        let layout = Layout::new(config).unwrap();
        let object = include_bytes!(concat!(env!("OUT_DIR"), "/model.bpf.o"));
        let mut open = ObjectBuilder::default().open_memory(object).unwrap();
        for mut program in open.progs_mut() {
            let wanted = program.name() == "wave_step";
            program.set_autoload(wanted);
        }
        let template = array("wave_template", layout.nic_lines + layout.host_lines).unwrap();
        let bell = bell().unwrap();
        for mut map in open.maps_mut() {
            match map.name().to_string_lossy().as_ref() {
                "wave" | "wave_all" => map.set_autocreate(false).unwrap(),
                "windows" => map.set_inner_map_fd(template.as_fd()).unwrap(),
                "bells" => map.set_inner_map_fd(bell.as_fd()).unwrap(),
                "control" => map.set_max_entries(1).unwrap(),
                "core_states" => map.set_max_entries(CORES.into()).unwrap(),
                name if name.ends_with(".rodata") => {
                    let part = Part { layout: &layout, cpus: &[0, 1], behind: Behind::Nothing };
                    let places = AllPlaces::new(&[part], layout.config.subjects, 3, false);
                    let into = map.initial_value_mut().unwrap();
                    into[..size_of::<AllPlaces>()].copy_from_slice(places.as_bytes());
                }
                _ => {}
            }
        }
        let object = open.load().unwrap();
        let find = |name: &str| object.maps().find(|map| map.name() == name).unwrap();
        let control = Table::map(find("control").as_fd(), 1).unwrap();
        let cores = Table::map(find("core_states").as_fd(), CORES.into()).unwrap();
        let windows = MapHandle::try_from(&find("windows")).unwrap();
        Program { layout, object, control, cores, windows }
    }

    fn step(&self, operation: u32, at: usize, tag: u64, words: [u64; 6]) {
        let mut step = Step { operation, at: at as u32, tag, entry: Entry { words } };
        let program = self.object.progs_mut().find(|program| program.name() == "wave_step");
        let input = ProgramInput { context_in: Some(step.as_mut_bytes()), ..Default::default() };
        let output = program.unwrap().test_run(input).unwrap();
        assert_eq!(output.return_value, 0);
    }

    fn control(&self) -> &Control {
        &self.control[0]
    }

    fn attach(&self) -> Window {
        let window = Window::new(&self.layout).unwrap();
        let epoch = self.control().epoch.load(Ordering::SeqCst) + 1;
        let key = ((epoch % WINDOWS as u64) as u32).to_ne_bytes();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&window.fd()) as u32;
        self.windows.update(&key, &fd.to_ne_bytes(), MapFlags::ANY).unwrap();
        self.control().epoch.store(epoch, Ordering::SeqCst);
        window
    }
}

/// Answers with the code that the decision itself names, or with the given one.
struct AsDecided(Option<Code>);

impl Checks for AsDecided {
    type Work = ();

    fn apply(&mut self, decision: &Decision) -> Result<(), Code> {
        if decision.kind != DECISION_RUN {
            return Err(Code::UnsupportedVersion);
        }
        let said = Code::from_number(decision.argument as u8).unwrap();
        match self.0.unwrap_or(said) {
            Code::Complete => Ok(()),
            code => Err(code),
        }
    }
}

/// The program and the model, in step.
struct Both<'a> {
    program: &'a Program,
    /// The program's window and the model's.
    windows: (Window, Arc<Memory>),
    ends: [Ends; 2],
    cores: Vec<HostCore>,
    outside: Context,
    /// For each core: the entries left for it, whether it asks, and whether it is away.
    left: Vec<VecDeque<Left>>,
    asks: Vec<bool>,
    away: Vec<bool>,
    made: Vec<TxnId>,
    pushed: Vec<u64>,
    counted: Vec<[u64; CODES]>,
}

impl<'a> Both<'a> {
    fn new(program: &'a Program) -> Both<'a> {
        let counted = program.cores.iter().map(|core| core.outcomes.each_ref().map(read));
        let runs = program.cores.iter().map(|core| (read(&core.record) >> 32) as u32);
        Both::attach(program, runs.collect(), counted.collect())
    }

    fn attach(program: &'a Program, runs: Vec<u32>, counted: Vec<[u64; CODES]>) -> Both<'a> {
        let layout = &program.layout;
        let window = program.attach();
        let (memory, _) =
            Memory::create("wave-model", layout.nic_lines, layout.host_lines, 0).unwrap();
        let memory = Arc::new(memory);
        let cores = runs.len();
        program.control().lost.store(0, Ordering::SeqCst);
        program.control().fault.store(0, Ordering::SeqCst);
        Both {
            program,
            ends: [Ends::new(layout, &window.memory), Ends::new(layout, &memory)],
            windows: (window, memory),
            cores: (0..cores)
                .map(|core| HostCore::new(layout, core as u16, runs[core], false))
                .collect(),
            outside: Context::new(layout, &layout.messages[cores]),
            left: vec![VecDeque::new(); cores],
            asks: vec![false; cores],
            away: vec![false; cores],
            made: vec![TxnId::new(0); cores],
            pushed: vec![0; cores],
            counted,
        }
    }

    fn carry_out(mut self, operation: &Operation) -> Both<'a> {
        let port = self.ends[1].port.clone();
        match *operation {
            Operation::Send { context, message } => {
                let [a, b, c, d, e] = message.words();
                let tag = u64::from(message.kind) << 16 | 5;
                self.program.step(SEND, context, tag, [a, b, c, d, e, 0]);
                match self.cores.get_mut(context) {
                    Some(core) => core.send(&port, &message),
                    None => self.outside.send(&port, &message),
                }
            }
            Operation::Decide { core, kind, flags, code } => {
                let txn = self.made[core].next();
                let argument = code as u64;
                let decision = Decision { kind, flags, txn, argument, ..Decision::default() };
                let (tag, words) = decision.encode();
                if self.push(core, tag, &words) {
                    self.made[core] = txn;
                    let code = match (flags, kind) {
                        (0, DECISION_RUN) => code,
                        (0, _) => Code::UnsupportedVersion,
                        (FLAG_ATOMIC, _) => Code::Unsupported,
                        _ => Code::InvalidFlags,
                    };
                    self.left[core].push_back(Left(Some(code)));
                }
            }
            Operation::Nonsense { core } => {
                if self.push(core, Tag { kind: DECISION_RUN, flags: 0 }, &[7; 5]) {
                    self.left[core].push_back(Left(None));
                }
            }
            Operation::TooEarly { core, laps } => {
                let place = &self.program.layout.decisions[core];
                let entries = u64::from(place.ring.entries);
                // In a full ring, it would overwrite an entry that it has left.
                if (self.left[core].len() as u64) < entries {
                    let line = place.ring.first + (self.pushed[core] % entries) as u32;
                    let lap = self.pushed[core] / entries + 1 + laps;
                    for ends in &self.ends {
                        let tag = u64::from(DECISION_RUN) << 16 | 3;
                        ends.port.window(place.home).store(line, LINE_WORDS - 1, lap << 32 | tag);
                    }
                }
            }
            Operation::Listen { context, entries } => {
                for _ in 0..entries {
                    let [program, model] = self.ends.each_mut().map(|ends| {
                        let entry = ends.messages[context].pop(&ends.port).unwrap();
                        entry.map(|entry| (entry.tag, entry.words().to_vec()))
                    });
                    assert_eq!(program, model);
                }
            }
            Operation::Credit { context, value } => {
                let place = &self.program.layout.messages[context];
                for ends in &self.ends {
                    ends.port.window(place.home).store(place.ring.credit, 0, value);
                }
            }
            Operation::Dispatch { core } => {
                self.program.step(DISPATCH, core, 0, [0; 6]);
                let found = self.take(core, None);
                let next = self.cores[core].poll(&port, Nanos(0), &mut AsDecided(None));
                assert_eq!(
                    next == Next::Run(()),
                    found,
                    "the model must find what the test expects"
                );
                if !found && !self.asks[core] {
                    // A core that was away asks on its own.
                    if !self.away[core] {
                        self.cores[core].ask_anew(&port);
                    }
                    (self.asks[core], self.away[core]) = (true, false);
                }
            }
            Operation::Offline { core } => {
                let offline = &self.program.cores[core].offline;
                offline.store(1, Ordering::SeqCst);
                self.program.step(REFUSE, core, 0, [0; 6]);
                offline.store(0, Ordering::SeqCst);
                self.take(core, Some(Code::CpuOffline));
                self.cores[core].refuse_all(&port, &mut AsDecided(Some(Code::CpuOffline)));
            }
            Operation::Attach => {
                self.check();
                let runs = self.cores.iter().map(|core| core.record().run).collect();
                return Both::attach(self.program, runs, self.counted);
            }
        }
        self.check();
        self
    }

    /// Makes the agent push the same entry on both sides.
    fn push<const N: usize>(&mut self, core: usize, tag: Tag, words: &[u64; N]) -> bool {
        let [program, model] =
            self.ends.each_mut().map(|ends| ends.decisions[core].push(&ends.port, tag, words));
        assert_eq!(program, model);
        let pushed = !matches!(program, Err(PushError::Full(_)));
        self.pushed[core] += u64::from(pushed);
        pushed
    }

    /// Predicts the results of a core's look at its entries. Returns whether it ends with a commit.
    fn take(&mut self, core: usize, instead: Option<Code>) -> bool {
        while let Some(Left(code)) = self.left[core].pop_front() {
            // A decision that every host refuses keeps its code.
            let code = code.map(|code| match code {
                Code::UnsupportedVersion | Code::Unsupported | Code::InvalidFlags => code,
                code => instead.unwrap_or(code),
            });
            match code {
                Some(Code::Complete) => {
                    self.count(core, Code::Complete);
                    self.asks[core] = false;
                    return true;
                }
                Some(code) => {
                    self.count(core, code);
                    self.away[core] = matches!(code, Code::CpuOffline | Code::CpuUnavailable);
                    self.asks[core] = !self.away[core];
                }
                None => {}
            }
        }
        false
    }

    fn count(&mut self, core: usize, code: Code) {
        self.counted[core][code as usize] += 1;
    }

    /// Checks that both sides have the same words in their windows, the same signals and the same counters.
    fn check(&mut self) {
        let layout = &self.program.layout;
        for home in [Home::Nic, Home::Host] {
            let [program, model] = [&self.windows.0.memory, &self.windows.1].map(|memory| {
                let all = memory.region(Home::Nic).iter().chain(memory.region(Home::Host));
                let lines = layout.nic_lines as usize * LINE_WORDS;
                let (skip, take) = match home {
                    Home::Nic => (0, lines),
                    Home::Host => (lines, usize::MAX),
                };
                all.skip(skip).take(take).map(read).collect::<Vec<u64>>()
            });
            for (at, (ours, theirs)) in
                program.chunks(LINE_WORDS).zip(model.chunks(LINE_WORDS)).enumerate()
            {
                let line = at as u32;
                let is_message = layout.messages.iter().any(|place| {
                    let ring = place.ring;
                    place.home == home && (ring.first..ring.first + ring.entries).contains(&line)
                });
                // An entry has only as many valid words as its last word says.
                let words = if is_message { ours[7] as u8 as usize } else { LINE_WORDS };
                assert_eq!(
                    (&ours[..words], ours[7]),
                    (&theirs[..words], theirs[7]),
                    "{home:?} {line}"
                );
            }
        }
        let [mut fault, mut lost] = [false; 2];
        let mut hear = |signals: Signals| {
            fault |= signals.fault();
            lost |= signals.lost();
        };
        self.cores.iter_mut().for_each(|core| hear(core.take_signals()));
        hear(self.outside.take_signals());
        let control = self.program.control();
        let [bpf_fault, bpf_lost] =
            [&control.fault, &control.lost].map(|word| word.swap(0, Ordering::SeqCst) != 0);
        assert_eq!(bpf_fault, fault, "faults");
        // An agent that is turned out for a fault needs no snapshot.
        assert!(bpf_lost == lost || fault, "losses: {bpf_lost}, {lost}");
        let epoch = read(&control.epoch);
        for (at, core) in self.cores.iter().enumerate() {
            let shared = &self.program.cores[at];
            assert_eq!(shared.outcomes.each_ref().map(read), self.counted[at], "core {at}");
            let word = read(&shared.record);
            let record = core.record();
            assert_eq!((word >> 32) as u32, record.run, "core {at}");
            if read(&shared.epoch) == epoch {
                assert_eq!(TxnId::new(word as u32), record.txn, "core {at}");
            }
        }
    }
}

fn read(word: &AtomicU64) -> u64 {
    word.load(Ordering::SeqCst)
}

/// The loaded program; `None` if this process may not load BPF programs.
fn program() -> Option<&'static Mutex<Program>> {
    static PROGRAM: OnceLock<Option<Mutex<Program>>> = OnceLock::new();
    let load = || {
        // SAFETY: reads an id of this process.
        if unsafe { libc::geteuid() } != 0 {
            skip("loading BPF programs needs root");
            return None;
        }
        if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            skip("this kernel has no BTF (/sys/kernel/btf/vmlinux)");
            return None;
        }
        Some(Mutex::new(Program::load()))
    };
    PROGRAM.get_or_init(load).as_ref()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bpf_program_matches_the_model(operations in operations()) {
        let Some(program) = program() else { return Ok(()) };
        let program = super::super::lock(program);
        let both = Both::new(&program);
        operations.iter().fold(both, Both::carry_out);
    }
}
