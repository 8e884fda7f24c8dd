//! gRPC through an agent's front to workers, with clients of other implementations.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// Debian's Python, for which python3-grpcio is packaged.
const PYTHON: &str = "/usr/bin/python3";

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(line: &str) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Running(command.spawn().expect("wave can be run"))
}

/// Waits for a line with this text.
fn says(out: impl Read, text: &str) {
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    let mut before = Vec::new();
    let is_said =
        lines.by_ref().inspect(|line| before.push(line.clone())).any(|line| line.contains(text));
    assert!(is_said, "it ended before `{text}`: {before:?}");
}

/// Starts the interop service, and an agent in front of it with the arguments `more`. Returns both, and the agent's address.
fn interop(name: &str, ring: u32, more: &str) -> ([Running; 2], String) {
    let socket =
        std::env::temp_dir().join(format!("wave-interop-{}-{name}.sock", std::process::id()));
    let socket = socket.display();
    let mut server = start(&format!("serve interop --offload {socket} --ring {ring}"));
    says(server.0.stdout.take().expect("it is piped"), "Serving");
    // A port that is free now. If it is taken meanwhile, the agent reports it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut agent = start(&format!("agent --rpc {socket} --listen {address} --share-cpu {more}"));
    says(agent.0.stderr.take().expect("it is piped"), "steers to");
    ([server, agent], address.to_string())
}

fn has_grpcio() -> bool {
    let mut command = Command::new(PYTHON);
    let found = command.args(["-c", "import grpc, grpc_tools"]).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

fn passes(name: &str, ring: u32, more: &str) {
    if !has_grpcio() {
        wave_skip::skip(
            "no client of another implementation (apt-get install python3-grpcio python3-grpc-tools)",
        );
        return;
    }
    let (_running, address) = interop(name, ring, more);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rpc_programs/interop.py");
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/interop.proto");
    let output = Command::new(PYTHON).args([folder, &address, proto]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "an interop test of the client failed");
    assert_eq!(text.lines().filter(|line| line.starts_with("passed")).count(), 20);
}

#[test]
fn interop_tests_of_grpcio_pass() {
    passes("default", 1024, "");
}

#[test]
fn interop_tests_pass_over_the_smallest_queues() {
    passes("smallest", 2, "");
}

#[test]
fn interop_tests_pass_with_a_connection_core() {
    let cpu = wave_process::cpus::allowed().unwrap()[0];
    passes("split", 1024, &format!("--connection-cpus {cpu}"));
}

/// Variable with the path of grpc-go's interop client.
const GO_CLIENT: &str = "WAVE_GRPC_GO_CLIENT";

/// The client's cases that need no credentials of a cloud.
const GO_CASES: [&str; 19] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "pick_first_unary",
    "rpc_soak",
    "channel_soak",
    "orca_per_rpc",
    "orca_oob",
];

#[test]
fn interop_tests_of_grpc_go_pass_also_with_two_connection_cores_and_tls() {
    let Some(go_client) = std::env::var_os(GO_CLIENT) else {
        return wave_skip::skip(format!(
            "no grpc-go interop client; .ci/run builds one, with Go, and names it by {GO_CLIENT}"
        ));
    };
    let cpus = wave_process::cpus::allowed().unwrap();
    let two = format!("--connection-cpus {},{}", cpus[0], cpus[cpus.len() - 1]);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fronts/grpc/tests/front");
    let tls = format!("--tls-cert {folder}/test-only.crt --tls-key {folder}/test-only.key");
    let trusted = format!("--use_tls --use_test_ca --ca_file={folder}/test-only.crt");
    let trusted = format!("{trusted} --server_host_override=test");
    for (name, more, client) in [
        ("go", "", ""),
        ("go-two", &two[..], ""),
        ("go-tls", &tls[..], &trusted[..]),
        ("go-two-tls", &format!("{two} {tls}"), &trusted),
    ] {
        let (_running, address) = interop(name, 1024, more);
        let (host, port) = address.rsplit_once(':').unwrap();
        for case in GO_CASES {
            let mut run = Command::new(&go_client);
            run.arg(format!("--server_host={host}")).arg(format!("--server_port={port}"));
            run.arg(format!("--test_case={case}")).args(client.split_whitespace());
            // By default the soak tests assert times.
            run.args([
                "--soak_per_iteration_max_acceptable_latency_ms=60000",
                "--soak_overall_timeout_seconds=60",
            ]);
            if case.starts_with("orca") {
                // The policy that shows load reports to the tests.
                let policy =
                    r#"{"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}"#;
                run.arg(format!("--service_config_json={policy}"));
            }
            let done = run.output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{name}: {case}: {said}");
            println!("passed {name} {case}");
        }
    }
}
