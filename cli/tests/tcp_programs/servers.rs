//! Servers of many kinds: threads, event loops, language runtimes. Their peers use Linux's TCP.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use crate::network::{
    AGENT, LINUX, Running, Up, connect, get, has, in_a_network, python, server, within_patience,
};
use crate::serve_bytes;

/// Number of concurrent connections.
const CONNECTIONS: usize = 20;

fn at(port: u16) -> SocketAddr {
    SocketAddr::from((AGENT, port))
}

fn bytes(count: u32, seed: u32) -> Vec<u8> {
    (seed..seed + count).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Sends bytes to an echo server over many connections at once, and compares the answers.
pub fn echo(port: u16) {
    thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            scope.spawn(move || {
                let sent = bytes(100_000 + connection as u32, connection as u32);
                let mut stream = connect(at(port));
                let mut writes = stream.try_clone().unwrap();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        writes.write_all(&sent).unwrap();
                        writes.shutdown(std::net::Shutdown::Write).unwrap();
                    });
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).unwrap();
                    assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
                });
            });
        }
    });
}

/// Fetches a file over many connections at once, and compares the answers.
fn fetch(port: u16, expected: &[u8]) {
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let (head, body) = get(at(port), "/file").unwrap();
                assert!(body == expected, "{} bytes: {head}", body.len());
            });
        }
    });
}

#[test]
fn asyncio_serves_connections_at_once_and_connects_to_linux() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("echo.py");
        // Each connection's bytes also go over one of the program's own connections to Linux, and back.
        // The set keeps the tasks: once a client has sent its end, CPython refers to a task that
        // waits for the other stream in cycles only, and collects it (over Linux's TCP as well).
        let program = "import asyncio\n\
             tasks = set()\n\
             async def serve(reader, writer):\n    \
                 tasks.add(asyncio.current_task())\n    \
                 r, w = await asyncio.open_connection('10.77.0.1', 9000)\n    \
                 async def pump(source, sink):\n        \
                     while data := await source.read(5000):\n            \
                         sink.write(data)\n            await sink.drain()\n        \
                     sink.write_eof()\n    \
                 await asyncio.gather(pump(reader, w), pump(r, writer))\n    \
                 w.close()\n    writer.close()\n\
             async def main():\n    \
                 server = await asyncio.start_server(serve, '10.77.0.2', 7000)\n    \
                 await server.serve_forever()\n\
             asyncio.run(main())\n";
        fs::write(&script, program).unwrap();
        let listener = std::net::TcpListener::bind(SocketAddr::from((LINUX, 9000))).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut back = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut stream, &mut back);
                    let _ = back.shutdown(std::net::Shutdown::Write);
                });
            }
        });
        let _server = server(&up, "log", &[python, script.to_str().unwrap()], 7000);
        echo(7000);
        up.awaits("ActiveOpens", CONNECTIONS as u64);
    });
}

#[test]
fn memcached_accepts_in_one_thread_and_serves_in_others() {
    in_a_network(|| {
        let program = "/usr/bin/memcached";
        if !has(program, "memcached") {
            return;
        }
        let up = Up::new();
        // memcached gives up its privileges before it opens its first socket.
        let words =
            [program, "-l", "10.77.0.2", "-p", "11211", "-t", "3", "-u", "nobody", "-U", "0"];
        let _server = server(&up, "log", &words, 11_211);
        thread::scope(|scope| {
            for connection in 0..CONNECTIONS {
                scope.spawn(move || use_memcached(connect(at(11_211)), connection));
            }
        });
    });
}

fn use_memcached(mut stream: TcpStream, connection: usize) {
    for at in 0..50 {
        let value = bytes(1 + (at * 997) % 60_000, at);
        let length = value.len();
        write!(stream, "set key{connection} 0 0 {length}\r\n").unwrap();
        stream.write_all(&value).unwrap();
        write!(stream, "\r\nget key{connection}\r\n").unwrap();
        let mut expected = format!("STORED\r\nVALUE key{connection} 0 {length}\r\n").into_bytes();
        expected.extend(value);
        expected.extend(b"\r\nEND\r\n");
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == expected);
    }
}

#[test]
fn lighttpd_sends_files() {
    in_a_network(|| {
        let program = "/usr/sbin/lighttpd";
        if !has(program, "lighttpd") {
            return;
        }
        let up = Up::new();
        let file = bytes(1_000_000, 7);
        fs::write(up.path("file"), &file).unwrap();
        let config = up.path("lighttpd.conf");
        let folder = up.folder.path().display();
        let text = format!(
            "server.document-root = \"{folder}\"\nserver.bind = \"10.77.0.2\"\nserver.port = 8080\n"
        );
        fs::write(&config, text).unwrap();
        let words = [program, "-D", "-f", config.to_str().unwrap()];
        let _server = server(&up, "log", &words, 8080);
        fetch(8080, &file);
    });
}

#[test]
fn haproxy_forwards_to_linux_and_to_the_loopback() {
    in_a_network(|| {
        let program = "/usr/sbin/haproxy";
        if !has(program, "haproxy") {
            return;
        }
        let up = Up::new();
        let file = bytes(500_000, 9);
        serve_bytes(SocketAddr::from((LINUX, 8001)), file.clone());
        serve_bytes(SocketAddr::from(([127, 0, 0, 1], 8002)), file.clone());
        let config = up.path("haproxy.conf");
        let text = "global\n nbthread 2\n\
             defaults\n mode http\n timeout client 1m\n timeout server 1m\n timeout connect 1m\n\
             listen linux\n bind 10.77.0.2:8080\n server a 10.77.0.1:8001\n\
             listen loopback\n bind 10.77.0.2:8081\n server b 127.0.0.1:8002\n";
        fs::write(&config, text).unwrap();
        let words = [program, "-db", "-f", config.to_str().unwrap()];
        let _server = server(&up, "log", &words, 8080);
        fetch(8080, &file);
        fetch(8081, &file);
        up.awaits("ActiveOpens", CONNECTIONS as u64);
    });
}

#[test]
fn iperf3_sends_and_receives() {
    in_a_network(|| {
        let program = "/usr/bin/iperf3";
        if !has(program, "iperf3") {
            return;
        }
        let up = Up::new();
        let mut command = up.over(&[program, "-s", "-B", "10.77.0.2"]);
        let _server = Running(command.stdout(Stdio::null()).spawn().unwrap());
        for direction in [&[][..], &["-R"]] {
            // The server closes its listener after each test.
            let report = within_patience("a server", || {
                let mut client = Command::new(program);
                client.args(["-c", "10.77.0.2", "-n", "20M", "-P", "2", "--json"]).args(direction);
                let report = client.output().unwrap().stdout;
                let report: serde_json::Value = serde_json::from_slice(&report).ok()?;
                report["error"].is_null().then_some(report)
            });
            // Its receiver stops counting when the sender is done.
            let bytes = |side: &str| report["end"][side]["bytes"].as_u64();
            assert!(bytes("sum_sent") >= Some(20 << 20), "{report}");
            assert!(bytes("sum_received") > Some(1 << 20), "{report}");
        }
    });
}

#[test]
fn node_serves_and_fetches() {
    in_a_network(|| {
        let program = "/usr/bin/node";
        if !has(program, "nodejs") {
            return;
        }
        let up = Up::new();
        let file = bytes(500_000, 11);
        serve_bytes(SocketAddr::from((LINUX, 8001)), file.clone());
        let script = up.path("server.js");
        // One server echoes, the other fetches from Linux for each request.
        let text = "const http = require('http'), net = require('net');\n\
             net.createServer({ allowHalfOpen: true }, s => s.pipe(s)).listen(7000, '10.77.0.2');\n\
             http.createServer((q, r) => http.get('http://10.77.0.1:8001/', a => a.pipe(r)))\n\
                 .listen(8080, '10.77.0.2');\n";
        fs::write(&script, text).unwrap();
        let _server = server(&up, "log", &[program, script.to_str().unwrap()], 8080);
        echo(7000);
        fetch(8080, &file);
        up.awaits("ActiveOpens", CONNECTIONS as u64);
    });
}

#[test]
fn a_jvm_serves_by_selectors_and_by_threads() {
    in_a_network(|| {
        let program = "/usr/bin/java";
        if !has(program, "openjdk-17-jdk-headless") {
            return;
        }
        let up = Up::new();
        let file = bytes(500_000, 13);
        fs::write(up.path("file"), &file).unwrap();
        let script = up.path("Serve.java");
        let text = r#"
import java.net.*;
import java.nio.file.*;
import com.sun.net.httpserver.HttpServer;
public class Serve {
    public static void main(String[] a) throws Exception {
        byte[] file = Files.readAllBytes(Path.of("file"));
        HttpServer http = HttpServer.create(new InetSocketAddress("10.77.0.2", 8080), 0);
        http.createContext("/", e -> {
            e.sendResponseHeaders(200, file.length);
            e.getResponseBody().write(file);
            e.close();
        });
        http.start();
        ServerSocket listener = new ServerSocket(7000, 50, InetAddress.getByName("10.77.0.2"));
        while (true) {
            Socket s = listener.accept();
            new Thread(() -> {
                try (s) { s.getInputStream().transferTo(s.getOutputStream()); } catch (Exception e) { e.printStackTrace(); }
            }).start();
        }
    }
}
"#;
        fs::write(&script, text).unwrap();
        let _server = server(&up, "log", &[program, script.to_str().unwrap()], 7000);
        echo(7000);
        fetch(8080, &file);
    });
}
