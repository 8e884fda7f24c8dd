use std::os::unix::process::CommandExt;
use wave_linux::sched::{self, Enclave, Options};
static LOG: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
struct K;
impl wave_core::brain::Recorder for K {
    fn record(&mut self, now: wave_core::clock::Nanos, input: &wave_core::brain::Input) {
        let t = format!("{} {input:?}", now.0 / 1000);
        LOG.lock().unwrap().push(t);
    }
    fn decided(&mut self, now: wave_core::clock::Nanos, c: u16, d: &wave_core::message::Decision) {
        LOG.lock().unwrap().push(format!("{} decided {c} {d:?}", now.0 / 1000));
    }
    fn kicked(&mut self, c: u16) {
        LOG.lock().unwrap().push(format!("kicked {c}"));
    }
}
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let policy = args[0].clone();
    let cpus = sched::parse_cpus(&args[1]);
    let mut options = Options::new("/tmp/hello.sock", cpus);
    options.config.patience = wave_core::clock::Nanos::from_millis(
        std::env::var("PATIENCE_MS").map_or(20, |t| t.parse().unwrap()),
    );
    let enclave = Enclave::start(options).unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(1)
    });
    let socket = enclave.socket().to_owned();
    if policy != "none" {
        std::thread::spawn(move || {
            sched::pin(&[3]).unwrap();
            let attached = wave_agent::attach(&socket).unwrap();
            let config = attached.layout.config;
            let policy = wave_agent::Registry::shipped().make(&policy, &config).unwrap();
            let r = wave_agent::run(attached, policy, K, wave_agent::Seat::Shared);
            eprintln!("agent left: {r:?}");
            let l = LOG.lock().unwrap();
            for x in l[l.len().saturating_sub(40)..].iter() {
                eprintln!("{x}");
            }
        });
        while !enclave.stats().agent_decides {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::thread::spawn({
            let s = enclave.socket().to_owned();
            move || {
                let _ = s;
            }
        });
    }
    let mut command = std::process::Command::new(&args[2]);
    command.args(&args[3..]);
    unsafe { command.pre_exec(|| sched::join(0)) };
    let start = std::time::Instant::now();
    let status = command.status();
    println!("{status:?} after {:?}", start.elapsed());
    std::thread::sleep(std::time::Duration::from_millis(100));
    println!("{:#?}", enclave.stats());
}
