//! Agents outside the machine, behind its PCI device as on a NIC.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::kernel::Kernel;
use super::machine::Wanted;
use super::{WAVE, built_as_tested, nic, session};

/// The device's address in the guest: QEMU assigns the first free slot of the bus.
const DEVICE: &str = "0000:00:01.0";
/// The programs that run in the guest, under different policies.
const PROGRAMS: &str = r#"
set -e
for round in 1 2 3 4; do
    for task in 1 2 3 4 5 6 7 8; do (true | cat) & done
    wait
done
stress-ng --quiet --timeout 0 --switch 2 --switch-ops 200 --futex 2 --futex-ops 100
# Debian's server is this program under another name.
bash -c "exec -a redis-server /usr/bin/redis-check-rdb --port 6401 --save '' --daemonize no" > /dev/null &
server=$!
until redis-cli -p 6401 ping > /dev/null 2>&1; do sleep 0.05; done
redis-benchmark -p 6401 -n 200 -c 8 -q -t set,get > /dev/null
kill $server
wait $server || true
grep vfio-msix /proc/interrupts > /tmp/interrupts || true
lspci -k -s 0000:00:01.0 2> /dev/null | grep 'driver in use' > /tmp/driver || true
"#;

/// One `wave run` in the guest, and the expectation.
struct Run {
    name: &'static str,
    options: &'static str,
    /// Whether the device is expected to interrupt.
    interrupts: bool,
}

const RUNS: [Run; 3] = [
    Run { name: "dma", options: "--decisions host", interrupts: true },
    Run { name: "bar", options: "--decisions nic", interrupts: true },
    Run { name: "sysfs", options: "--decisions host --device-by sysfs", interrupts: false },
];

/// Agents behind the device schedule the programs: with decision queues in the guest's memory, in the device's memory, and
/// without interrupts.
pub fn schedules(kernel: &Kernel) -> Result<(), String> {
    let mut script = String::from("set -e\ncat > /tmp/programs <<'END'\n");
    script.push_str(PROGRAMS);
    script.push_str("END\n");
    let wave = wave()?;
    for Run { name, options, .. } in &RUNS {
        script.push_str(&format!(
            "rm -f /tmp/interrupts /tmp/driver\n\
             {wave} run --host linux --device {DEVICE} {options} --patience 5000 --quiet --json -- \
             sh /tmp/programs > /tmp/result\n\
             echo \"{name} result $(tr -d '\\n' < /tmp/result)\"\n\
             if [ -s /tmp/driver ]; then sed 's/^/{name} driver /' /tmp/driver; fi\n\
             if [ -s /tmp/interrupts ]; then sed 's/^/{name} interrupts /' /tmp/interrupts; fi\n"
        ));
    }
    script.push_str("dmesg | grep sched_ext: | sed 's/^/kernel /'\n");
    let out = with_agents(kernel, &script, &["fifo", "shinjuku:slice_us=5000", "vm"], None)?;
    for Run { name, interrupts, .. } in &RUNS {
        let of = |what: &str| {
            let start = format!("{name} {what} ");
            let lines = out.lines().filter_map(|line| line.strip_prefix(&start).map(str::to_owned));
            lines.collect::<Vec<_>>()
        };
        let result = of("result").pop().ok_or_else(|| format!("{name}: no result in {out}"))?;
        let object: Value =
            serde_json::from_str(&result).map_err(|error| format!("{name}: {error}: {result}"))?;
        let decisions = object["outcomes"]["COMPLETE"].as_u64().unwrap_or(0);
        // On a busy machine the watchdog may find an agent late, and another attaches.
        let by_host: u64 = object["cores"]
            .as_array()
            .into_iter()
            .flatten()
            .fold(0, |sum, core| sum + core["switches_by_host"].as_u64().unwrap_or(0));
        if decisions < 500 || decisions < 2 * by_host || object["exit_code"] != 0 {
            return Err(format!("{name}: {result}"));
        }
        let vectors = of("interrupts");
        let rung = vectors.iter().filter(|line| interrupts_of(line) > 0).count();
        let drivers = of("driver");
        if *interrupts && (rung < 2 || !drivers.iter().any(|line| line.contains("vfio-pci"))) {
            return Err(format!("{name}: the device was not used: {vectors:?} {drivers:?}"));
        }
        let lost = &object["agents_lost"];
        println!("        {name}: {decisions} decisions, {rung} vectors rung, {lost} agents lost");
    }
    let odd =
        |line: &&str| !line.contains("enabled") && !line.contains("unregistered from user space");
    match out.lines().filter(|line| line.starts_with("kernel ")).find(odd) {
        Some(line) => Err(format!("the kernel says: {line}")),
        None => Ok(()),
    }
}

/// The agent outside is killed repeatedly, and so is the host: no thread is lost, and the next one works.
pub fn survives(kernel: &Kernel) -> Result<(), String> {
    let wave = wave()?;
    let run = format!("{wave} run --host linux --device {DEVICE} --patience 500 --quiet --json --");
    let script = format!(
        "set -e\n\
         {run} sleep 1000 > /dev/null 2>&1 & victim=$!\n\
         until [ \"$(cat /sys/kernel/sched_ext/state)\" = enabled ]; do sleep 0.1; done\n\
         sleep 1; kill -9 $victim; wait $victim || true\n\
         until [ \"$(cat /sys/kernel/sched_ext/state)\" = disabled ]; do sleep 0.1; done\n\
         {run} sh -c 'i=0; while [ $i -lt 150 ]; do (true | cat) & i=$((i + 1)); \
         [ $((i % 6)) -eq 0 ] && wait; done; wait; echo all is done >&2'\n\
         ls /sys/fs/bpf/wave-device 2>/dev/null | sed 's/^/left /'\n\
         dmesg | grep sched_ext: | sed 's/^/kernel /'\n"
    );
    let out = with_agents(kernel, &script, &["fifo"], Some(Duration::from_millis(2500)))?;
    let result = out.lines().find(|line| line.starts_with('{'));
    let result: Option<Value> = result.and_then(|line| serde_json::from_str(line).ok());
    let agents = result.and_then(|result| result["agents"].as_u64());
    let agents = agents.ok_or_else(|| format!("no result in {out}"))?;
    if agents < 2
        || !out.contains("all is done")
        || out.lines().any(|line| line.starts_with("left "))
    {
        return Err(out);
    }
    println!("        {agents} agents, one after the other");
    Ok(())
}

/// An agent behind the device reads a program's access bits by DMA into the guest's memory, and has cold memory paged out. All
/// of it comes back.
pub fn pages_out(kernel: &Kernel) -> Result<(), String> {
    let wave = wave()?;
    let cli = "redis-cli -p 6402";
    let script = format!(
        "set -e\n\
         bash -c \"exec -a redis-server /usr/bin/redis-check-rdb --port 6402 --save '' --daemonize no\" > /dev/null &\n\
         server=$!\n\
         until {cli} ping > /dev/null 2>&1; do sleep 0.05; done\n\
         seq 6000 | awk '{{printf \"SET key:%d %01200d\\r\\n\", $1, $1}}' | {cli} --pipe > /dev/null\n\
         {wave} memory run --device {DEVICE} --zram 128MiB --pid $server --refaults 100000 --pressure 100 --quiet \
         --json > /tmp/result & run=$!\n\
         until [ \"$(awk '/^VmSwap/ {{print $2}}' /proc/$server/status)\" -ge 6000 ]; do kill -0 $run; sleep 0.5; done\n\
         kill $run; wait $run\n\
         echo \"result $(tr -d '\\n' < /tmp/result)\"\n\
         for key in 1 777 6000; do {cli} get key:$key | sed 's/^0*/value /'; done\n\
         {cli} dbsize | sed 's/^/keys /'\n\
         kill $server\n"
    );
    let out = with_agents(kernel, &script, &["sol:shortest_ms=200,horizon_ms=1600"], None)?;
    let of = |what: &'static str| out.lines().filter_map(move |line| line.strip_prefix(what));
    let result = of("result ").next().and_then(|line| serde_json::from_str::<Value>(line).ok());
    let result = result.ok_or_else(|| format!("no result in {out}"))?;
    let pages =
        result["samples"].as_array().and_then(|samples| samples.last()?["pages_out"].as_u64());
    let pages = pages.unwrap_or(0);
    let values: Vec<&str> = of("value ").collect();
    if pages < 1_000 || values != ["1", "777", "6000"] || of("keys ").next() != Some("6000") {
        return Err(out);
    }
    println!(
        "        {pages} pages out, by {} agents; access bits by {}",
        result["agents"]["attached"], result["backend"]
    );
    Ok(())
}

/// Runs a script in a guest that has the device, while agents attach to its other side: one policy after the other, and each
/// killed after a while, if wanted. Returns the script's output.
fn with_agents(
    kernel: &Kernel,
    script: &str,
    policies: &'static [&'static str],
    killed_after: Option<Duration>,
) -> Result<String, String> {
    static FOLDERS: AtomicU32 = AtomicU32::new(0);
    let (own, number) = (std::process::id(), FOLDERS.fetch_add(1, Ordering::Relaxed));
    let folder = std::path::PathBuf::from(format!("/dev/shm/wave-nic-{own}-{number}"));
    let command = ["sh", "-c", script].map(String::from).to_vec();
    let wanted = Wanted {
        cpus: 4,
        nic: Some(folder.clone()),
        // For swap: the guest has no room for files.
        modules: vec!["zram".into()],
        silence_max: Duration::from_secs(300),
        command,
        ..Wanted::default()
    };
    let agents = Agents::start(wave()?, folder, policies, killed_after)?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = session::run(kernel, &wanted, &mut out, &mut err);
    drop(agents);
    let text = format!("{}{}", String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    match outcome {
        Ok(outcome) if outcome.exit_code == 0 => Ok(text),
        Ok(outcome) => Err(format!("exit code {}: {text}", outcome.exit_code)),
        Err(error) => Err(format!("{error}: {text}")),
    }
}

/// Agents on the device's other side: when one ends, the next starts.
struct Agents {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agents {
    fn start(
        wave: String,
        folder: std::path::PathBuf,
        policies: &'static [&'static str],
        killed_after: Option<Duration>,
    ) -> Result<Agents, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let work = move || {
            let mut policies = policies.iter().cycle();
            while !ends.load(Ordering::SeqCst) {
                if !nic::socket(&folder).exists() {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                let policy = policies.next().expect("policies repeat for ever");
                let mut agent = Command::new(&wave);
                agent.args(["agent", "--quiet", "--leave-with-parent", "--share-cpu"]);
                agent.args(["--policy", policy, "--device"]);
                agent.arg(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                let Ok(agent) = agent.spawn() else { return };
                follow(agent, &ends, killed_after);
            }
        };
        let thread = std::thread::Builder::new().name("agents".into()).spawn(work);
        Ok(Agents { stop, thread: Some(thread.map_err(|error| error.to_string())?) })
    }
}

fn follow(mut agent: Child, ends: &AtomicBool, killed_after: Option<Duration>) {
    let began = std::time::Instant::now();
    while matches!(agent.try_wait(), Ok(None)) {
        if ends.load(Ordering::SeqCst) || killed_after.is_some_and(|after| began.elapsed() > after)
        {
            let _ = agent.kill();
            let _ = agent.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Builds the program, and returns its path.
fn wave() -> Result<String, String> {
    built_as_tested(WAVE)
}

/// The number of interrupts on all CPUs, from a line of /proc/interrupts.
fn interrupts_of(line: &str) -> u64 {
    let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
    counts.sum()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn interrupts_are_counted() {
        assert_eq!(interrupts_of(" 31:  5  0  2  IR-PCI-MSIX-0000:00:01.0  1-edge"), 7);
    }
}
