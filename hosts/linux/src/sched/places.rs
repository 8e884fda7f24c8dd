//! What the BPF program is told before it runs: where everything is, of each enclave.

use wave_core::layout::Layout;
use wave_core::link::Home;

/// As in the program.
const CPUS_MAX: usize = 1024;
/// As in the program: enclaves at once.
pub(super) const ENCLAVES_MAX: usize = 8;
const NO_CORE: u16 = u16::MAX;

/// `struct places` of the program: one enclave's.
#[repr(C)]
#[derive(Clone, Copy)]
struct Places {
    patience_ns: u64,
    cores: u32,
    first_core: u32,
    agent_parked: u32,
    preempt: u32,
    core_status: u32,
    messages_first: u32,
    messages_credit: u32,
    messages_shift: u32,
    decisions_first: u32,
    decisions_credit: u32,
    decisions_shift: u32,
    decisions_far: u16,
    clock_is_fence: u16,
    context_of_cpu: [u16; CPUS_MAX],
}

/// `struct layout` of the program.
#[repr(C)]
pub(super) struct AllPlaces {
    round_ns: u64,
    enclaves: u32,
    pub(super) all_cores: u32,
    subjects: u32,
    cpus_possible: u32,
    everything: u32,
    unused: u32,
    places: [Places; ENCLAVES_MAX],
    core_of_cpu: [u16; CPUS_MAX],
    cpu_of_core: [u16; CPUS_MAX],
    enclave_of_core: [u16; CPUS_MAX],
}

const _: () = assert!(size_of::<Places>() == 8 + 12 * 4 + 2 * CPUS_MAX);
const _: () = assert!(
    size_of::<AllPlaces>() == 8 + 6 * 4 + ENCLAVES_MAX * size_of::<Places>() + 3 * 2 * CPUS_MAX
);

/// What the program is to know of one enclave.
pub(super) struct Part<'a> {
    pub(super) layout: &'a Layout,
    pub(super) cpus: &'a [usize],
    pub(super) behind: Behind,
}

impl Places {
    const NONE: Places = Places {
        patience_ns: 0,
        cores: 0,
        first_core: 0,
        agent_parked: 0,
        preempt: 0,
        core_status: 0,
        messages_first: 0,
        messages_credit: 0,
        messages_shift: 0,
        decisions_first: 0,
        decisions_credit: 0,
        decisions_shift: 0,
        decisions_far: 0,
        clock_is_fence: 0,
        context_of_cpu: [0; CPUS_MAX],
    };

    fn new(part: &Part<'_>, first_core: u32, cpus_possible: usize) -> Places {
        let layout = part.layout;
        let line = |home: Home, line: u32| match home {
            Home::Nic => line,
            Home::Host => layout.nic_lines + line,
        };
        let (messages, decisions) = (&layout.messages[0], &layout.decisions[0]);
        let mut places = Places {
            patience_ns: layout.config.patience.0,
            cores: layout.config.cores.into(),
            first_core,
            agent_parked: line(Home::Host, layout.agent_parked),
            preempt: line(Home::Host, layout.preempt),
            core_status: line(Home::Nic, layout.core_status),
            messages_first: line(messages.home, messages.ring.first),
            messages_credit: line(messages.home, messages.ring.credit),
            messages_shift: messages.ring.entries.trailing_zeros(),
            decisions_first: line(decisions.home, decisions.ring.first),
            decisions_credit: line(decisions.home, decisions.ring.credit),
            decisions_shift: decisions.ring.entries.trailing_zeros(),
            decisions_far: (part.behind == Behind::Device { decisions: true }).into(),
            clock_is_fence: (part.behind != Behind::Nothing && is_emulated_in_one_thread()).into(),
            ..Places::NONE
        };
        let mut outside = part.cpus.len() as u16;
        for cpu in 0..cpus_possible.min(CPUS_MAX) {
            let own = part.cpus.iter().position(|other| *other == cpu);
            places.context_of_cpu[cpu] = own.map_or(outside, |core| core as u16);
            outside += u16::from(own.is_none());
        }
        places
    }
}

impl AllPlaces {
    pub(super) fn new(
        parts: &[Part<'_>],
        subjects: u32,
        cpus_possible: usize,
        everything: bool,
    ) -> Box<AllPlaces> {
        let patience = parts.iter().map(|part| part.layout.config.patience.0).min();
        let mut all = Box::new(AllPlaces {
            round_ns: patience.unwrap_or(0) / 4,
            enclaves: parts.len() as u32,
            all_cores: 0,
            subjects,
            cpus_possible: cpus_possible as u32,
            everything: everything.into(),
            unused: 0,
            places: [Places::NONE; ENCLAVES_MAX],
            core_of_cpu: [NO_CORE; CPUS_MAX],
            cpu_of_core: [0; CPUS_MAX],
            enclave_of_core: [0; CPUS_MAX],
        });
        for (enclave, part) in parts.iter().enumerate() {
            all.places[enclave] = Places::new(part, all.all_cores, cpus_possible);
            for &cpu in part.cpus {
                let core = all.all_cores as usize;
                all.core_of_cpu[cpu] = core as u16;
                all.cpu_of_core[core] = cpu as u16;
                all.enclave_of_core[core] = enclave as u16;
                all.all_cores += 1;
            }
        }
        all
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the struct is `repr(C)` without padding (its size is asserted), and any byte of
        // an integer may be read.
        unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<AllPlaces>())
        }
    }
}

/// What agents may be behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// Nothing: they are processes of this machine.
    Nothing,
    /// A device, whose memory may hold the decisions.
    Device {
        /// It does.
        decisions: bool,
    },
}

/// Whether this machine may be one whose CPUs QEMU's translator runs in one thread (`fence` in the program).
fn is_emulated_in_one_thread() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG"))
}
