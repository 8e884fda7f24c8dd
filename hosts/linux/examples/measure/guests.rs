//! KVM virtual machines under the policy for virtual machines: counts timer interrupts of their cores and exits
//! from their guests, for a given amount of guest work (Wave 7.2.4, as counts).
//!
//! As in the paper, there are two machines, each with as many virtual CPUs as there are cores, all of them busy. A
//! guest has no kernel, so the host causes each exit: by a timer interrupt, a kick, a page that is touched for the
//! first time, or the guest's end. The agent decides on preemptions, so the cores need no ticks for that; whether
//! they have ticks depends on the kernel's command line (`nohz_full=`). Besides the cores, it takes a CPU for the
//! agent and the rest of the system: CPU 0.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use wave_agent::{Registry, Seat, attach};
use wave_core::clock::Nanos;
use wave_linux::sched::{self, Enclave, Options};

use crate::Error;

/// Number of machines, as in the paper.
const MACHINES: usize = 2;
/// Rounds of a virtual CPU's loop: they take several quanta.
const ROUNDS: u32 = 250_000_000;
/// CPU of the system, the agent and the control thread.
const SEAT: usize = 0;
/// Address of a guest's code.
const CODE_AT: u64 = 0x1000;
const PAGE: usize = 0x1000;

/// Guest code that counts up and down in real mode, and halts.
fn code() -> Vec<u8> {
    let mut code = vec![0x66, 0xb9]; // mov ecx, ROUNDS
    code.extend(ROUNDS.to_le_bytes());
    code.extend([0x66, 0x31, 0xc0]); // xor eax, eax
    code.extend([0x66, 0x40]); // again: inc eax
    code.extend([0x66, 0x49]); // dec ecx
    code.extend([0x75, 0xfa]); // jnz again
    code.push(0xf4); // hlt
    code
}

/// Prints the counts of one run.
pub fn measure() -> Result<(), Error> {
    let online = wave_process::cpus::online()?;
    let cores: Vec<usize> = online.into_iter().filter(|cpu| *cpu != SEAT).collect();
    if cores.is_empty() {
        return Err("the measurement needs at least two CPUs: one is the agent's".into());
    }
    let kvm = Kvm::new().map_err(|error| format!("/dev/kvm: {error}"))?;
    let machines =
        (0..MACHINES).map(|_| Machine::new(&kvm, cores.len())).collect::<Result<Vec<_>, _>>()?;

    let socket = wave_process::places::socket("measure")?;
    let mut options = Options::new(&socket, cores.clone());
    // An emulated machine is slow.
    options.config.patience = Nanos::from_millis(5_000);
    let enclave = Enclave::start(options)?;
    let _agent = Agent::start(&enclave, "vm")?;

    let ticks = ticks(&cores)?;
    let exits = exits()?;
    let mut threads = Vec::new();
    let mut kept = Vec::new();
    for Machine { vm, memory, vcpus } in machines {
        for vcpu in vcpus {
            threads.push(std::thread::Builder::new().spawn(move || run(vcpu))?);
        }
        kept.push((vm, memory));
    }
    let vcpus = threads.len();
    for thread in threads {
        thread.join().map_err(|_| "a virtual CPU's thread panicked")??;
    }
    let exits = self::exits()? - exits;
    let ticks = self::ticks(&cores)? - ticks;

    let stats = enclave.stats();
    let by_itself: u64 = stats.cores.iter().map(|core| core.fallback_switches).sum();
    let switches: u64 = stats.cores.iter().map(|core| core.switches).sum();
    if let Some(why) = stats.turned_out {
        return Err(format!("the kernel turned the scheduler out: {why}").into());
    }
    if stats.lost_agents > 0 || by_itself > 0 {
        let lost = stats.lost_agents;
        return Err(
            format!("the host chose {by_itself} times by itself; agents lost: {lost}").into()
        );
    }
    println!("cores {}", cores.len());
    println!("vcpus {vcpus}");
    println!("guest_instructions {}", vcpus as u64 * 3 * u64::from(ROUNDS));
    println!("ticks {ticks}");
    println!("exits {exits}");
    println!("switches {switches}");
    Ok(())
}

/// A machine that has not run yet.
struct Machine {
    vm: VmFd,
    memory: Pages,
    vcpus: Vec<VcpuFd>,
}

impl Machine {
    fn new(kvm: &Kvm, vcpus: usize) -> Result<Machine, Error> {
        let vm = kvm.create_vm()?;
        let memory = Pages::new(&code())?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: CODE_AT,
            memory_size: PAGE as u64,
            userspace_addr: memory.0 as u64,
        };
        // SAFETY: the page stays mapped for longer than the machine runs, and nothing here refers to
        // it while guests do.
        unsafe { vm.set_user_memory_region(region)? };
        let vcpus = (0..vcpus)
            .map(|id| -> Result<VcpuFd, Error> {
                let vcpu = vm.create_vcpu(id as u64)?;
                let mut special = vcpu.get_sregs()?;
                (special.cs.base, special.cs.selector) = (0, 0);
                vcpu.set_sregs(&special)?;
                let mut registers = vcpu.get_regs()?;
                // Bit 1 of the flags is always set.
                (registers.rip, registers.rflags) = (CODE_AT, 2);
                vcpu.set_regs(&registers)?;
                Ok(vcpu)
            })
            .collect::<Result<_, _>>()?;
        Ok(Machine { vm, memory, vcpus })
    }
}

/// Runs a virtual CPU to its end, as a thread of the enclave. Fails if it did not do all its work.
fn run(mut vcpu: VcpuFd) -> Result<(), String> {
    sched::join(0).map_err(|error| format!("joining the enclave: {error}"))?;
    loop {
        match vcpu.run() {
            Ok(VcpuExit::Hlt) => break,
            Ok(other) => return Err(format!("a guest exited with {other:?}")),
            Err(error) if error.errno() == libc::EINTR || error.errno() == libc::EAGAIN => {}
            Err(error) => return Err(format!("running a guest: {error}")),
        }
    }
    let registers = vcpu.get_regs().map_err(|error| format!("a guest's registers: {error}"))?;
    match (registers.rax, registers.rcx) {
        (rax, 0) if rax == u64::from(ROUNDS) => Ok(()),
        (rax, rcx) => Err(format!("a guest counted to {rax}, with {rcx} to go, of {ROUNDS}")),
    }
}

/// One page of this process's memory.
struct Pages(*mut u8);

impl Pages {
    fn new(contents: &[u8]) -> io::Result<Pages> {
        assert!(contents.len() <= PAGE, "the guest's code fits in a page");
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: asks for new memory, which replaces no mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page is writable, larger than the contents, and known to nobody else.
        unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), at.cast(), contents.len()) };
        Ok(Pages(at.cast()))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.0.cast(), PAGE) };
    }
}

/// Number of timer interrupts on these CPUs so far.
fn ticks(cpus: &[usize]) -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/interrupts")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("LOC:"));
    let counts: Vec<u64> = line
        .ok_or("/proc/interrupts has no line for local timer interrupts")?
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let of = |cpu: &usize| counts.get(*cpu).ok_or("/proc/interrupts is too short");
    cpus.iter().map(of).sum::<Result<u64, _>>().map_err(Into::into)
}

/// Number of exits of all existing guests. Ended guests no longer count.
fn exits() -> Result<u64, Error> {
    let path = "/sys/kernel/debug/kvm/exits";
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(text.trim().parse()?)
}

/// An agent in its own process, which is killed when this is dropped.
struct Agent(Child);

impl Agent {
    fn start(enclave: &Enclave, policy: &str) -> Result<Agent, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("agent").arg(enclave.socket()).arg(policy).stdout(Stdio::null());
        let mut agent = Agent(command.spawn()?);
        while !enclave.stats().agent_decides {
            if let Some(status) = agent.0.try_wait()? {
                return Err(format!("the agent exited: {status}").into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(agent)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Body of the agent's process.
pub fn agent(socket: &Path, policy: &str) -> Result<(), Error> {
    wave_process::cpus::pin(&[SEAT])?;
    let attached = attach(socket)?;
    let policy = Registry::shipped().make(policy, &attached.layout.config)?;
    wave_agent::run(attached, policy, (), Seat::Shared)?;
    Ok(())
}
