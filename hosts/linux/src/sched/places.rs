//! The BPF program's settings, written before it runs: the places of each enclave's cores, queues and windows.

use wave_core::layout::Layout;
use wave_core::link::Home;
use zerocopy::FromZeros;

use super::shared::{AllPlaces, CPUS_MAX, ENCLAVES_MAX, Places};

const NO_CORE: u16 = u16::MAX;

/// The program's settings for one enclave.
pub(super) struct Part<'a> {
    pub(super) layout: &'a Layout,
    pub(super) cpus: &'a [usize],
    pub(super) behind: Behind,
}

impl Places {
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
            ..Places::new_zeroed()
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
            places: [Places::new_zeroed(); ENCLAVES_MAX],
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
}

/// A device behind which agents may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// No device: agents are processes on this machine.
    Nothing,
    /// A device, whose memory may hold the decisions.
    Device { decisions: bool },
}

/// Whether QEMU's translator may run all CPUs of this machine in one thread (see `fence` in the program).
fn is_emulated_in_one_thread() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG"))
}
