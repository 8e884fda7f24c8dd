//! `wave tcp capture` and `wave tcp trace`.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{Uid, set_thread_res_uid};
use serde_json::Value;
use wave_front_tcp::{captures_path, traces_path};

use crate::network::*;

#[test]
fn capture_has_the_frames_of_a_port_and_is_refused_to_other_users() {
    in_a_network(|| {
        let up = Up::new();
        let (_http, _echo) = (up.serve("http"), up.serve("echo"));
        drop(connect(7));
        let file = up.folder.path().join("toe.pcapng");
        let socket = up.socket().display().to_string();
        let line = format!("tcp capture --port 80 --socket {socket} --write {}", file.display());
        let mut capture = wave(&line).spawn().unwrap();
        let mut said = BufReader::new(capture.stderr.take().unwrap()).lines();
        assert!(said.next().unwrap().unwrap().starts_with("Capturing to"));
        let (_, body) = get(&mut connect(80), "/1");
        assert!(body.len() <= 1);
        drop(connect(7));
        // A request, its answer, and the segments that open and close the connection.
        let end = Instant::now() + PATIENCE;
        while up.ss()["captured"]["frames"].as_u64().unwrap() < 6 {
            assert!(Instant::now() < end, "{}", up.ss());
        }
        kill_process(Pid::from_child(&capture), Signal::INT).unwrap();
        assert!(capture.wait().unwrap().success());
        let last = said.next().unwrap().unwrap();
        assert!(last.ends_with("frames captured, none dropped"), "{last}");
        let bytes = std::fs::read(&file).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut frames, mut dropped) = (0, None);
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::EnhancedPacket(packet) => {
                    let port = |at| u16::from_be_bytes([packet.data[at], packet.data[at + 1]]);
                    assert!(port(34) == 80 || port(36) == 80, "{:?}", packet.data);
                    frames += 1;
                }
                Block::InterfaceStatistics(statistics) => {
                    let [InterfaceStatisticsOption::IsbIfDrop(count)] = statistics.options[..]
                    else {
                        panic!("{:?}", statistics.options);
                    };
                    dropped = Some(count);
                }
                _ => {}
            }
        }
        assert!(last.starts_with(&format!("{frames} ")) && frames >= 6, "{last}");
        assert_eq!(dropped, Some(0));

        is_closed_to_strangers(&up, captures_path(&up.socket()));
    });
}

/// Asserts that another user gets nothing from this socket, even with permission to open it.
fn is_closed_to_strangers(up: &Up, socket: PathBuf) {
    for (path, mode) in [(up.folder.path(), 0o755), (&*socket, 0o666)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let stranger = thread::spawn(move || {
        let nobody = Uid::from_raw(65_534);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(b"{}\n");
        let mut came = Vec::new();
        let _ = stream.read_to_end(&mut came);
        came
    });
    assert!(stranger.join().unwrap().is_empty());
}

#[test]
fn trace_has_the_events_of_connections_and_is_refused_to_other_users() {
    in_a_network(|| {
        let up = Up::new();
        let _http = up.serve("http");
        let path = up.socket();
        let line = format!("tcp trace --json --socket {}", path.display());
        let mut trace = wave(&line).spawn().unwrap();
        let mut lines = BufReader::new(trace.stdout.take().unwrap()).lines();
        let (sender, receiver) = std::sync::mpsc::channel();
        let reader = thread::spawn(move || {
            let mut points = Vec::new();
            while let Some(Ok(line)) = lines.next() {
                let record: Value = serde_json::from_str(&line).unwrap();
                points.push(record["point"].as_str().unwrap().to_owned());
                let _ = sender.send(());
            }
            points
        });
        // Nothing is traced until the points are on.
        let end = Instant::now() + PATIENCE;
        let mut is_on = false;
        while !is_on {
            assert!(Instant::now() < end, "{}", up.ss());
            get(&mut connect(80), "/1");
            is_on = receiver.recv_timeout(Duration::from_millis(100)).is_ok();
        }
        let mut stream = connect(80);
        let (_, body) = get(&mut stream, "/3m");
        stream.read_exact(&mut vec![0; 3 * MIB - body.len()]).unwrap();
        drop(stream);
        let flow = up.ss()["sockets"].to_string();
        kill_process(Pid::from_child(&trace), Signal::INT).unwrap();
        assert!(trace.wait().unwrap().success(), "{flow}");
        let points = reader.join().unwrap();
        let mut said = String::new();
        trace.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let last = said.lines().last().unwrap();
        assert!(last.starts_with(&format!("{} records, ", points.len())), "{last}");
        for point in [
            "packet",
            "syn_received",
            "syn_sent",
            "established",
            "segment",
            "in_order",
            "request",
            "data_sent",
            "acknowledged",
            "ack_sent",
            "sent",
            "copy_begins",
            "copied",
            "notified",
            "window",
        ] {
            assert!(points.iter().any(|one| one == point), "{point} is not among {points:?}");
        }
        let only =
            format!("tcp trace --json --point syn_received --count 1 --socket {}", path.display());
        let only = wave(&only).spawn().unwrap();
        while Instant::now() < end && !kill_is_over(&only) {
            get(&mut connect(80), "/1");
        }
        let only = only.wait_with_output().unwrap();
        let text = String::from_utf8(only.stdout).unwrap();
        let record: Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(record["point"], "syn_received");
        is_closed_to_strangers(&up, traces_path(&path));
    });
}

/// Whether a process has ended and waits to be reaped.
fn kill_is_over(child: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('Z'))
}
