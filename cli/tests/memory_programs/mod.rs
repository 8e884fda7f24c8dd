//! Debian's redis and PostgreSQL, unmodified.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use wave_skip::skip;

use super::{object, status, swap, wave};

const MIB: u64 = 1 << 20;

/// A server. Killed with its children on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

fn wait_for<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = get() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A client of redis, over one connection.
struct Redis(TcpStream);

impl Redis {
    const KEYS: u32 = 60_000;
    const BYTES: usize = 1_500;

    fn value(key: u32) -> String {
        let mut word = u64::from(key) + 1;
        let mut value = String::with_capacity(Redis::BYTES);
        while value.len() < Redis::BYTES {
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
            // Half of the value compresses. Incompressible memory would not be paged out to zram.
            value.push_str(&format!("{word:016x}, a text of "));
        }
        value.truncate(Redis::BYTES);
        value
    }

    fn send(&mut self, words: &[&str]) {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.write_all(text.as_bytes()).unwrap();
    }

    fn set(&mut self, key: u32) {
        self.send(&["SET", &format!("key:{key}"), &Redis::value(key)]);
        let mut answer = [0; 5];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n");
    }

    fn is_right(&mut self, key: u32) -> bool {
        self.send(&["GET", &format!("key:{key}")]);
        let expected = format!("${}\r\n{}\r\n", Redis::BYTES, Redis::value(key));
        let mut answer = vec![0; expected.len()];
        self.0.read_exact(&mut answer).unwrap();
        answer == expected.as_bytes()
    }
}

/// Starts redis-server, which Debian's redis-tools have under another name.
fn redis(port: u16) -> Option<Server> {
    let Some(program) = ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"]
        .into_iter()
        .find(|path| Path::new(path).exists())
    else {
        skip("redis is not installed (apt-get install redis-tools)");
        return None;
    };
    let mut command = Command::new(program);
    command.arg0("redis-server").args(["--port", &port.to_string(), "--save", ""]);
    command.args(["--daemonize", "no", "--bind", "127.0.0.1"]).stdout(Stdio::null());
    Some(Server(command.process_group(0).spawn().unwrap()))
}

#[test]
fn redis_shrinks_by_its_cold_half_and_answers_every_key() {
    let Some(_swap) = swap(1 << 30) else { return };
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(server) = redis(port) else { return };
    let pid = server.0.id();
    let mut client = Redis(wait_for("redis", || TcpStream::connect(("127.0.0.1", port)).ok()));
    // The keys of one half first, then the other, so that the halves do not share pages.
    (0..Redis::KEYS).for_each(|key| client.set(key));
    let before = status(pid, "VmRSS");
    let policy = "sol:shortest_ms=100,horizon_ms=1600";
    let mut run = wave(&["run", "--pid", &pid.to_string(), "--policy", policy, "--seconds", "22"]);
    run.args(["--slowdown", "100000", "--pressure", "100", "--json"]).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut least = before;
    while run.try_wait().unwrap().is_none() {
        for key in (0..Redis::KEYS / 2).step_by(3) {
            assert!(client.is_right(key), "key {key}");
        }
        least = least.min(status(pid, "VmRSS"));
    }
    let found = object(&run.wait_with_output().unwrap());
    println!("redis: {} MiB before, {} MiB at least; {found}", before / MIB, least / MIB);
    assert!((least as f64) < 0.75 * before as f64, "{least} of {before}: {found}");
    let wrong = (0..Redis::KEYS).filter(|key| !client.is_right(*key)).count();
    assert_eq!(wrong, 0, "keys with a wrong value");
}

/// The newest installed PostgreSQL, in Debian's folders.
fn postgresql() -> Option<std::path::PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

/// PostgreSQL refuses to run as root.
fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn ask(folder: &Path, bin: &Path, sql: &str) -> Option<String> {
    let mut command = as_postgres(&bin.join("psql"));
    command.args(["-h", folder.to_str()?, "-d", "postgres", "-At", "-c", sql]);
    let output = command.stdout(Stdio::piped()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

#[test]
fn shared_buffers_of_postgresql_are_recognised_and_left_alone() {
    let Some(_swap) = swap(1 << 30) else { return };
    let Some(bin) = postgresql() else {
        skip("PostgreSQL is not installed (apt-get install postgresql)");
        return;
    };
    let folder = TempDir::new_in("/var/tmp").unwrap();
    let owner = Command::new("chown").arg("postgres").arg(folder.path()).status().unwrap();
    assert!(owner.success());
    let data = folder.path().join("data");
    let made = as_postgres(&bin.join("initdb")).args(["-N", "-D"]).arg(&data).status().unwrap();
    assert!(made.success(), "initdb");
    let mut server = as_postgres(&bin.join("postgres"));
    server.arg("-D").arg(&data).args(["-c", "shared_buffers=192MB", "-c", "listen_addresses="]);
    // A killed server's segments would stay in /dev/shm.
    server.args(["-c", "dynamic_shared_memory_type=mmap"]);
    server.arg("-c").arg(format!("unix_socket_directories={}", folder.path().display()));
    let server = Server(server.process_group(0).spawn().unwrap());
    wait_for("PostgreSQL", || ask(folder.path(), &bin, "select 1"));
    let rows = "create table t as select n, repeat(md5(n::text), 8) as words \
                from generate_series(1, 300000) n";
    ask(folder.path(), &bin, rows).unwrap();
    let sum = "select sum(hashtext(words)::bigint) from t";
    let before = ask(folder.path(), &bin, sum).unwrap();
    let shared = |name| status(server.0.id(), name);
    let policy = "sol:shortest_ms=50,horizon_ms=400";
    let pid = server.0.id().to_string();
    let mut run = wave(&["run", "--pid", &pid, "--policy", policy, "--seconds", "8"]);
    let found: Value = object(
        &run.args(["--slowdown", "100000", "--pressure", "100", "--json"]).output().unwrap(),
    );
    let words = found["left_alone"].to_string();
    assert!(words.contains("MiB shared"), "{found}");
    let program = found["left_alone"].as_array().unwrap();
    assert!(program.iter().any(|line| line.as_str().unwrap().contains(&pid)), "{found}");
    assert!(shared("VmSwap") < 64 * MIB, "none of the 192 MiB of shared memory is paged out");
    let swapped = found["samples"].as_array().unwrap().last().unwrap()["swapped_bytes"].clone();
    println!("PostgreSQL: {words}; {swapped} bytes of its own in swap");
    assert_eq!(ask(folder.path(), &bin, sum).unwrap(), before);
}
