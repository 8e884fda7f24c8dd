//! What `wave tcp up` and its programs refuse, and what they say then.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::network::*;

#[test]
fn address_of_another_host_is_refused() {
    at_a_cable(|_, _agent| {
        // The agent at the other end has .2, and its kernel has .3.
        for taken in ["10.77.0.2", "10.77.0.3"] {
            let folder = tempfile::tempdir().unwrap();
            let (mut up, socket) = up_at_the_cable(taken, folder.path());
            // An agent that has no CPU for 0.3 s answers too late, which the next test is about.
            if up.has_begun() {
                counts_a_duplicate(&socket);
                continue;
            }
            let (code, said) = up.ended();
            assert_eq!(code, Some(3), "{said}");
            assert!(said.contains(&format!("{taken} is taken: on wavetoe0, the host ")), "{said}");
        }
        ip("tuntap add dev wavetoe2 mode tap");
        let output = wave("tcp up --tap wavetoe2 --address 10.78.0.2/24").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(3) && said.contains("sudo ip link set dev wavetoe2 up"),
            "{said}"
        );
    });
}

#[test]
fn host_with_the_same_address_that_answers_late_is_counted() {
    at_a_cable(|_, other| {
        let other = Pid::from_child(&other.0);
        kill_process(other, Signal::STOP).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (mut up, socket) = up_at_the_cable("10.77.0.2", folder.path());
        let is_up = up.has_begun();
        kill_process(other, Signal::CONT).unwrap();
        assert!(is_up, "{:?}", up.ended());
        counts_a_duplicate(&socket);
    });
}

/// Starts an agent with this address at the near end of the cable. Returns it, and its socket in this folder.
fn up_at_the_cable(address: &str, folder: &Path) -> (Running, PathBuf) {
    let socket = folder.join("toe.sock");
    let line = format!("tcp up --interface wavetoe0 --address {address}/24 --socket");
    let child = wave(&format!("{line} {}", socket.display())).spawn().unwrap();
    (Running(child), socket)
}

fn counts_a_duplicate(socket: &Path) {
    let start = Instant::now();
    while ss(socket)["counters"]["duplicate_addresses"].as_u64().unwrap() == 0 {
        assert!(start.elapsed() < PATIENCE, "no duplicate was counted");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn networks_of_another_interface_are_refused() {
    in_a_network(|| {
        if Command::new("ip").arg("-V").output().is_err() {
            return wave_skip::skip("ip(8) is not installed: apt-get install iproute2");
        }
        let _up = Up::new();
        let is_refused = |more: &str| {
            let line = format!("tcp up --tap wavetoe1 --address 10.77.0.3/24 {more}");
            let output = wave(&line).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(
                output.status.code() == Some(3) && said.contains("in a network of wavetoe0"),
                "{said}"
            );
        };
        // The first refusal leaves no device behind.
        is_refused("--persistent");
        is_refused("--persistent");
        ip("tuntap add dev wavetoe1 mode tap");
        ip("link set dev wavetoe1 up");
        ip("address add 10.77.0.9/24 dev wavetoe1");
        is_refused("");

        ip("-6 address add fd77::1/64 dev wavetoe0");
        let line = "tcp up --tap wavetoe2 --address 10.78.0.2/24 --address fd77::2/64";
        let output = wave(line).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let why = "fd77::2 is also in a network of wavetoe0";
        assert!(output.status.code() == Some(3) && said.contains(why), "{said}");
    });
}

#[test]
fn unusable_interfaces_are_refused_with_a_remedy() {
    in_a_network(|| {
        if Command::new("ip").arg("-V").output().is_err() {
            return wave_skip::skip("ip(8) is not installed: apt-get install iproute2");
        }
        ip("link add wavetoe0 type veth peer name wavetoe1");
        let refusal = |more: &str| {
            let output = wave(&format!("tcp up --address 10.77.0.2/24 {more}")).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, said) = refusal("--interface wavetoe9");
        assert!(code == Some(3) && said.contains("ip link"), "{said}");
        let (code, said) = refusal("--interface wavetoe0");
        assert!(code == Some(3) && said.contains("ip link set dev wavetoe0 up"), "{said}");
        ip("link set wavetoe0 up mtu 68");
        let (code, said) = refusal("--interface wavetoe0");
        assert!(code == Some(3) && said.contains("mtu 1500"), "{said}");
        ip("link set wavetoe0 mtu 1500");
        std::fs::write("/proc/sys/net/ipv4/conf/wavetoe0/proxy_arp", "1").unwrap();
        let (code, said) = refusal("--interface wavetoe0");
        assert!(code == Some(3) && said.contains("sudo sysctl -w"), "{said}");
        ip("address add 10.77.0.2/24 dev wavetoe0");
        let (code, said) = refusal("--interface wavetoe0");
        assert!(code == Some(3) && said.contains("of a Linux interface"), "{said}");
        let (code, said) = refusal("--interface wavetoe0 --tap wavetoe5");
        assert!(code == Some(2) && said.contains("--tap"), "{said}");
    });
}

#[test]
fn refusals_name_the_unavailable_resource_and_a_remedy() {
    in_a_network(|| {
        let up = Up::new();
        let refusal = |line: &str| {
            let output = wave(line).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let socket = up.socket();
        let (code, said) = refusal("tcp up --tap wavetoe0 --address 10.77.0.3/24");
        assert!(code == Some(3) && said.contains("wavetoe0"), "{said}");
        let (code, said) = refusal("tcp up --tap wavetoe1 --address 10.77.0.1/24");
        assert!(code == Some(3) && said.contains("of a Linux interface"), "{said}");
        let (code, said) = refusal("tcp up --address 10.77.0.0/24");
        assert!(code == Some(2) && said.contains("10.77.0.0"), "{said}");
        let (code, said) = refusal("tcp up --tap wavetoe1 --address 10.78.0.2/24 --mtu 68");
        assert!(code == Some(2) && said.contains("576"), "{said}");
        let (code, said) =
            refusal("tcp up --tap wavetoe1 --address 10.78.0.2/24 --address fd78::2/64 --mtu 1279");
        assert!(code == Some(2) && said.contains("1280"), "{said}");
        let (code, said) = refusal("tcp up --address 10.78.0.2/24 --cpus 1-0");
        assert!(code == Some(2) && said.contains("such as 2-3,8"), "{said}");
        let (code, said) = refusal("tcp ss --socket /nowhere/toe.sock");
        assert!(code == Some(3) && said.contains("wave tcp up"), "{said}");
        let _http = up.serve("http");
        let (code, said) = refusal(&format!("serve http --toe {}", socket.display()));
        assert!(code == Some(3) && said.contains("port 80"), "{said}");
        assert!(said.contains("--port"), "{said}");
    });
}
