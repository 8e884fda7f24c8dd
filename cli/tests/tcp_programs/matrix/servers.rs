//! Matrix rows for servers: key-value stores, web servers, proxies and echo servers.

use std::io::{Read, Write};
use std::net::SocketAddr;

use crate::matrix::transcript::{Transcript, as_it_is, mask_digits, mask_lines};
use crate::matrix::{Program, Site, Turn, USUAL, expect, http, run};
use crate::network::{LINUX, connect};

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(super) const REDIS: Program = Program {
    path: "/usr/bin/redis-server",
    package: "redis-server",
    port: 6379,
    prepare: |site| {
        let (ip, port) = (site.ip().to_string(), site.port.to_string());
        let line = ["/usr/bin/redis-server", "--bind", &ip, "--port", &port];
        let more = ["--protected-mode", "no", "--save", "", "--dir", site.folder.to_str().unwrap()];
        words(&[&line[..], &more].concat())
    },
    session: |site, transcript| {
        let large = "v".repeat(1_000_000);
        let mut lines = "PING\r\nECHO a\r\nSET a 1\r\nINCR a\r\nAPPEND a x\r\nINCR a\r\nGET a\r\nNONSENSE\r\n\
             MULTI\r\nSET b 2\r\nGET b\r\nEXEC\r\nBLPOP none 0.01\r\nCONFIG GET port\r\nCLIENT INFO\r\n"
            .to_owned();
        for at in 0..300 {
            lines += &format!(
                "SET key{at} {}\r\nRPUSH list {at} {at}\r\n",
                "w".repeat(at * 37 % 5_000 + 1)
            );
        }
        lines += "LRANGE list 0 -1\r\nMGET key7 key8 key199 none\r\nSTRLEN key133\r\nDBSIZE\r\n";
        lines += &format!("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$1000000\r\n{large}\r\nGET large\r\n");
        lines += "FLUSHALL\r\nQUIT\r\n";
        transcript.ask(site, 0, lines.as_bytes(), |said| {
            // Masks the output of CLIENT INFO, and its length.
            let said = mask_digits(&mask_digits(said, "\r\n$2"), "\r\n$3");
            mask_lines(&said, "id=")
        });
        transcript.ask(site, 0, b"*1\r\n$-7\r\n", as_it_is);
        // Publishes a message from one connection to another.
        let mut hears = connect(site.at(0));
        expect(&mut hears, b"SUBSCRIBE c\r\n", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")
            .unwrap();
        transcript.ask(site, 0, b"PUBLISH c hello\r\nQUIT\r\n", as_it_is);
        let mut heard = [0; 35];
        hears.read_exact(&mut heard).unwrap();
        transcript.add("heard", &heard);
    },
    exchange: |_, stream, turn| {
        let Turn { connection, round } = turn;
        let request = format!("SET k{connection} {connection}-{round}\r\nGET k{connection}\r\n");
        let value = format!("{connection}-{round}");
        expect(
            stream,
            request.as_bytes(),
            format!("+OK\r\n${}\r\n{value}\r\n", value.len()).as_bytes(),
        )
    },
    ..USUAL
};

#[test]
fn redis_behaves_over_an_agent_as_over_linux() {
    run(&REDIS);
}

pub(super) const MEMCACHED: Program = Program {
    path: "/usr/bin/memcached",
    package: "memcached",
    port: 11_211,
    prepare: |site| {
        let (ip, port) = (site.ip().to_string(), site.port.to_string());
        let most = (site.connections + 100).to_string();
        let line = ["/usr/bin/memcached", "-l", &ip, "-p", &port, "-t", "3", "-u", "nobody"];
        words(&[&line[..], &["-U", "0", "-c", &most]].concat())
    },
    session: |site, transcript| {
        let (large, huge) = ("v".repeat(900_000), "h".repeat(1_100_000));
        let mut lines = "version\r\nset a 5 0 3\r\nabc\r\nget a\r\ngets a none\r\nadd a 0 0 1\r\nx\r\n\
             append a 0 0 2\r\nde\r\nget a\r\nset n 0 0 2\r\n41\r\nincr n 1\r\ndecr n 50\r\nincr a 1\r\n\
             delete a\r\ndelete a\r\ntouch n 0\r\ngat 0 n\r\nset q 0 0 1 noreply\r\nz\r\nget q\r\n\
             nonsense\r\nset k 0 0 nonsense\r\nmn\r\nms m 2\r\nhi\r\nmg m v\r\nmg none v\r\nverbosity 0\r\n"
            .to_owned();
        for at in 0..300 {
            let value = "w".repeat(at * 97 % 4_000);
            lines += &format!("set key{at} {at} 0 {}\r\n{value}\r\n", value.len());
        }
        for at in 0..300 {
            lines += &format!("get key{at} key{} none{at}\r\n", (at + 7) % 300);
        }
        lines += &format!("set large 0 0 {}\r\n{large}\r\nget large\r\n", large.len());
        lines +=
            &format!("set huge 0 0 {}\r\n{huge}\r\nget huge\r\nflush_all\r\nquit\r\n", huge.len());
        transcript.ask(site, 0, lines.as_bytes(), as_it_is);
    },
    exchange: |_, stream, turn| {
        let value = http::body(1 + (turn.connection + turn.round) % 3_000);
        let (at, length) = (turn.connection, value.len());
        let mut request = format!("set k{at} 0 0 {length}\r\n").into_bytes();
        request.extend(&value);
        request.extend(format!("\r\nget k{at}\r\n").bytes());
        let mut answer = format!("STORED\r\nVALUE k{at} 0 {length}\r\n").into_bytes();
        answer.extend(&value);
        answer.extend(b"\r\nEND\r\n");
        expect(stream, &request, &answer)
    },
    times: 10,
    ..USUAL
};

#[test]
fn memcached_behaves_over_an_agent_as_over_linux() {
    run(&MEMCACHED);
}

pub(super) const NGINX: Program = Program {
    path: "/usr/sbin/nginx",
    package: "nginx-light",
    port: 8080,
    prepare: |site| {
        let (folder, root) = (site.folder.display(), http::files(site));
        let config = format!(
            "daemon off; master_process on; worker_processes 2; user nobody nogroup;\n\
             worker_rlimit_nofile {0}; pid {folder}/pid; error_log {folder}/errors;\n\
             events {{ worker_connections {0}; }}\n\
             http {{ access_log off; keepalive_timeout 600; client_body_temp_path {folder}/b;\n\
             proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;\n\
             scgi_temp_path {folder}/s; sendfile on; tcp_nopush on;\n\
             server {{ listen {1}; root {root}; }} }}\n",
            site.connections + 200,
            site.at(0)
        );
        words(&["/usr/sbin/nginx", "-c", &site.write("nginx.conf", config)])
    },
    session: http::ask_for_files,
    exchange: http::exchange,
    ..USUAL
};

#[test]
fn nginx_behaves_over_an_agent_as_over_linux() {
    run(&NGINX);
}

const LIGHTTPD: Program = Program {
    path: "/usr/sbin/lighttpd",
    package: "lighttpd",
    port: 8080,
    prepare: |site| {
        let config = format!(
            "server.document-root = \"{}\"\nserver.bind = \"{}\"\nserver.port = {}\n\
             server.max-keep-alive-idle = 600\nserver.max-fds = {}\nserver.max-connections = {}\n",
            http::files(site),
            site.ip(),
            site.port,
            2 * site.connections + 200,
            site.connections + 100
        );
        words(&["/usr/sbin/lighttpd", "-D", "-f", &site.write("lighttpd.conf", config)])
    },
    session: http::ask_for_files,
    exchange: http::exchange,
    ..USUAL
};

#[test]
fn lighttpd_behaves_over_an_agent_as_over_linux() {
    run(&LIGHTTPD);
}

const HAPROXY: Program = Program {
    path: "/usr/sbin/haproxy",
    package: "haproxy",
    port: 8080,
    prepare: |site| {
        let behind = SocketAddr::from((LINUX, if site.is_over { 9001 } else { 9002 }));
        http::serve(behind, 0);
        let config = format!(
            "global\n nbthread 2\n maxconn {0}\n\
             defaults\n mode http\n timeout client 5m\n timeout server 5m\n timeout connect 1m\n\
             timeout http-keep-alive 5m\n maxconn {0}\n retries 0\n\
             listen proxy\n bind {1}\n server a {behind}\n\
             listen dead\n bind {2}\n server b 10.77.0.1:9\n",
            site.connections + 100,
            site.at(0),
            site.at(1)
        );
        words(&["/usr/sbin/haproxy", "-db", "-f", &site.write("haproxy.conf", config)])
    },
    session: |site, transcript| {
        http::ask_for_files(site, transcript);
        transcript.ask(site, 1, b"GET / HTTP/1.0\r\n\r\n", as_it_is);
    },
    exchange: http::exchange,
    ..USUAL
};

#[test]
fn haproxy_behaves_over_an_agent_as_over_linux() {
    run(&HAPROXY);
}

pub(super) const ASYNCIO: Program = Program {
    path: "/usr/bin/python3",
    package: "python3",
    port: 7000,
    prepare: |site| {
        // Some lines are commands; all other bytes are echoed.
        let text = format!(
            "import asyncio\n\
             async def serve(reader, writer):\n    \
                 own, peer = writer.get_extra_info('sockname'), writer.get_extra_info('peername')\n    \
                 while data := await reader.read(5000):\n        \
                     if data == b'who\\n':\n            data = f'{{own}} {{peer[0]}}\\n'.encode()\n        \
                     if data == b'much\\n':\n            data = bytes(3000000)\n        \
                     if data == b'end\\n':\n            break\n        \
                     if data == b'abort\\n':\n            writer.transport.abort()\n            return\n        \
                     writer.write(data)\n        await writer.drain()\n    \
                 writer.close()\n\
             async def main():\n    \
                 server = await asyncio.start_server(serve, '{}', {}, backlog=500)\n    \
                 await server.serve_forever()\n\
             asyncio.run(main())\n",
            site.ip(),
            site.port
        );
        words(&["/usr/bin/python3", &site.write("serve.py", text)])
    },
    session: |site, transcript| {
        http::ask_for_echoes(site, 0, transcript);
        let mut stream = connect(site.at(0));
        for (request, bytes) in [("who\n", 30), ("much\n", 3_000_000), ("echo\n", 5)] {
            stream.write_all(request.as_bytes()).unwrap();
            let mut got = vec![0; bytes];
            stream.read_exact(&mut got).unwrap();
            transcript.add(request, &got);
        }
        transcript.ask(site, 0, b"end\n", as_it_is);
        transcript.ask(site, 0, b"abort\n", as_it_is);
    },
    exchange: http::echo,
    ..USUAL
};

#[test]
fn asyncio_behaves_over_an_agent_as_over_linux() {
    run(&ASYNCIO);
}

/// Posts to and fetches from a server that echoes requests.
fn ask_for_answers(site: &Site, transcript: &mut Transcript) {
    let close = "Host: h\r\nConnection: close\r\n";
    let posted = "p".repeat(300_000);
    let requests = [
        format!("GET /some?thing=1 HTTP/1.1\r\n{close}\r\n"),
        "GET /old HTTP/1.0\r\n\r\n".to_owned(),
        format!("POST /post HTTP/1.1\r\nContent-Length: 300000\r\n{close}\r\n{posted}"),
        format!(
            "POST /parts HTTP/1.1\r\nTransfer-Encoding: chunked\r\n{close}\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
        ),
        format!("HEAD / HTTP/1.1\r\n{close}\r\n"),
        format!("GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\n{close}\r\n"),
        "NONSENSE\r\n\r\n".to_owned(),
    ];
    for request in requests {
        transcript.ask(site, 0, request.as_bytes(), http::mask);
    }
    http::ask_for_echoes(site, 1, transcript);
}

const NODE: Program = Program {
    path: "/usr/bin/node",
    package: "nodejs",
    port: 8080,
    prepare: |site| {
        let text = format!(
            "const http = require('http'), net = require('net');\n\
             net.createServer({{ allowHalfOpen: true }}, s => s.on('error', () => 0).pipe(s))\n\
                 .listen({}, '{2}', 500, () =>\n\
             http.createServer((q, r) => {{\n\
                 const parts = [];\n\
                 q.on('data', part => parts.push(part));\n\
                 q.on('end', () => r.end(`${{q.method}} ${{q.url}} ${{q.socket.localAddress}}\\n`\n\
                     + Buffer.concat(parts)));\n\
             }}).listen({1}, '{2}'));\n",
            site.port + 1,
            site.port,
            site.ip()
        );
        words(&["/usr/bin/node", &site.write("serve.js", text)])
    },
    session: ask_for_answers,
    exchange: http::echo,
    exchange_port: 1,
    ..USUAL
};

#[test]
fn node_behaves_over_an_agent_as_over_linux() {
    run(&NODE);
}

const JVM: Program = Program {
    path: "/usr/bin/java",
    package: "openjdk-17-jdk-headless",
    port: 8080,
    prepare: |site| {
        let text = r#"
import java.net.*;
import java.io.*;
import com.sun.net.httpserver.HttpServer;
public class Serve {
    public static void main(String[] a) throws Exception {
        InetAddress ip = InetAddress.getByName(a[0]);
        int port = Integer.parseInt(a[1]);
        ServerSocket listener = new ServerSocket(port + 1, 500, ip);
        HttpServer http = HttpServer.create(new InetSocketAddress(ip, port), 500);
        http.createContext("/", e -> {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            out.write((e.getRequestMethod() + " " + e.getRequestURI() + " " + e.getLocalAddress() + "\n").getBytes());
            e.getRequestBody().transferTo(out);
            boolean isHead = e.getRequestMethod().equals("HEAD");
            e.sendResponseHeaders(200, isHead ? -1 : out.size());
            if (!isHead) e.getResponseBody().write(out.toByteArray());
            e.close();
        });
        http.start();
        while (true) {
            Socket s = listener.accept();
            new Thread(null, () -> {
                try (s) { s.getInputStream().transferTo(s.getOutputStream()); } catch (Exception e) { }
            }, "echo", 256 << 10).start();
        }
    }
}
"#;
        let (ip, port) = (site.ip().to_string(), site.port.to_string());
        words(&["/usr/bin/java", "-Xmx256m", &site.write("Serve.java", text), &ip, &port])
    },
    session: ask_for_answers,
    exchange: http::echo,
    exchange_port: 1,
    ..USUAL
};

#[test]
fn jvm_behaves_over_an_agent_as_over_linux() {
    run(&JVM);
}
