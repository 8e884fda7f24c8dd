//! The requests to each server, and the answers.

use std::path::PathBuf;

/// Connections of each load.
pub const CONNECTIONS: usize = 64;
/// The bytes of an echo, and of stored values.
const VALUE: [u8; 64] = [b'v'; 64];
/// The file that nginx sends.
pub const FILE: &str = "1k";
const CONTENT: [u8; 1024] = [b'x'; 1024];
/// Requests per batch on a connection with pipelining.
const PIPELINED: usize = 16;

/// A server, with the form of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// The bench's own echo program.
    Echo,
    Redis,
    /// redis, with several requests per batch.
    RedisPipelined,
    Memcached,
    Nginx,
}

impl App {
    pub const ALL: [App; 5] =
        [App::Echo, App::Redis, App::RedisPipelined, App::Memcached, App::Nginx];

    pub fn name(self) -> &'static str {
        match self {
            App::Echo => "echo",
            App::Redis => "redis",
            App::RedisPipelined => "redis_pipelined",
            App::Memcached => "memcached",
            App::Nginx => "nginx",
        }
    }

    pub fn of_name(name: &str) -> Option<App> {
        App::ALL.into_iter().find(|app| app.name() == name)
    }

    pub fn port(self) -> u16 {
        match self {
            App::Echo => 7,
            App::Redis | App::RedisPipelined => 6379,
            App::Memcached => 11_211,
            App::Nginx => 8080,
        }
    }

    /// Number of requests in a batch. A batch is written at once, and is answered completely before the next batch.
    pub fn batch(self) -> usize {
        if self == App::RedisPipelined { PIPELINED } else { 1 }
    }

    pub fn request(self) -> Vec<u8> {
        match self {
            App::Echo => VALUE.to_vec(),
            App::Redis | App::RedisPipelined => b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".to_vec(),
            App::Memcached => b"get key\r\n".to_vec(),
            App::Nginx => format!("GET /{FILE} HTTP/1.1\r\nHost: bench\r\n\r\n").into_bytes(),
        }
    }

    /// The request that stores the value, and the server's answer to it; `None` if the server stores no value.
    pub fn set_up(self) -> Option<(Vec<u8>, &'static [u8])> {
        let (head, answer): (&[u8], &[u8]) = match self {
            App::Echo | App::Nginx => return None,
            App::Redis | App::RedisPipelined => {
                (b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$64\r\n", b"+OK\r\n")
            }
            App::Memcached => (b"set key 0 0 64\r\n", b"STORED\r\n"),
        };
        Some(([head, &VALUE, b"\r\n"].concat(), answer))
    }

    /// The first bytes of every answer.
    pub fn answer_head(self) -> &'static [u8] {
        match self {
            App::Echo => &VALUE,
            App::Redis | App::RedisPipelined => b"$64\r\nv",
            App::Memcached => b"VALUE key 0 64\r\nv",
            App::Nginx => b"HTTP/1.1 200 OK\r\n",
        }
    }

    /// Length of the answer that begins with these bytes, which is equal for all answers of a server. `None` if more bytes are needed.
    pub fn answer_bytes(self, came: &[u8]) -> Option<usize> {
        match self {
            App::Echo => Some(VALUE.len()),
            App::Redis | App::RedisPipelined => Some(b"$64\r\n".len() + VALUE.len() + 2),
            App::Memcached => {
                Some(b"VALUE key 0 64\r\n".len() + VALUE.len() + b"\r\nEND\r\n".len())
            }
            App::Nginx => {
                let head = came.windows(4).position(|word| word == b"\r\n\r\n")?;
                Some(head + 4 + CONTENT.len())
            }
        }
    }

    /// Whether these bytes are a complete and correct answer.
    pub fn is_answer(self, bytes: &[u8]) -> bool {
        let tail: &[&[u8]] = match self {
            App::Echo => &[&VALUE],
            App::Redis | App::RedisPipelined => &[b"\r\n", &VALUE, b"\r\n"],
            App::Memcached => &[b"\r\n", &VALUE, b"\r\nEND\r\n"],
            App::Nginx => &[b"\r\n\r\n", &CONTENT],
        };
        self.answer_bytes(bytes) == Some(bytes.len())
            && bytes.starts_with(self.answer_head())
            && bytes.ends_with(&tail.concat())
    }

    /// The server's command line for an address, with its files in `folder`. The settings are the package's, except those that would
    /// prevent it from serving here.
    ///
    /// # Errors
    /// The server is not installed.
    pub fn command(self, address: &str, folder: &str, cpu: usize) -> Result<Vec<String>, String> {
        let port = self.port();
        let (program, line) = match self {
            App::Echo => {
                let own = std::env::current_exe().map_err(|error| error.to_string())?;
                (own, format!("program --linux {address} --cpu {cpu}"))
            }
            App::Redis | App::RedisPipelined => (
                find("redis-server", "redis-server")?,
                // In protected mode, redis refuses other hosts.
                format!("--bind {address} --port {port} --protected-mode no --dir {folder} --save"),
            ),
            // memcached requires the name of a user when it is run by root.
            App::Memcached => {
                (find("memcached", "memcached")?, format!("-l {address} -p {port} -u root"))
            }
            App::Nginx => (find("nginx", "nginx")?, format!("-c {folder}/nginx.conf")),
        };
        let program = program.to_str().ok_or("a program's path is not UTF-8")?.to_owned();
        let mut words = vec![program];
        words.extend(line.split_whitespace().map(str::to_owned));
        if matches!(self, App::Redis | App::RedisPipelined) {
            // An empty argument of --save: redis saves nothing during the bench.
            words.push(String::new());
        }
        Ok(words)
    }

    /// Writes the files that the server reads.
    pub fn write_files(self, address: &str, folder: &str) -> Result<(), String> {
        if self != App::Nginx {
            return Ok(());
        }
        let port = self.port();
        // Debian's settings, without the access log and without the limit of 1,000 requests per connection.
        let config = format!(
            "daemon off; user root root; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;\n\
             events {{ worker_connections 768; }}\n\
             http {{ sendfile on; tcp_nopush on; access_log off; keepalive_requests 1000000000;\n\
             client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;\n\
             uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n\
             server {{ listen {address}:{port}; root {folder}; }} }}\n"
        );
        let write = |name: &str, bytes: &[u8]| {
            let path = format!("{folder}/{name}");
            std::fs::write(&path, bytes).map_err(|error| format!("{path}: {error}"))
        };
        write("nginx.conf", config.as_bytes())?;
        write(FILE, &CONTENT)
    }
}

/// Finds a program in PATH, or in a folder of system programs.
fn find(program: &str, package: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = folders.map(|folder| folder.join(program)).find(|path| path.is_file());
    found.ok_or_else(|| format!("{program} is not installed: apt-get install {package}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_and_correct_answers_are_accepted() {
        for (app, answer) in [
            (App::Echo, VALUE.to_vec()),
            (App::Redis, [b"$64\r\n", &VALUE[..], b"\r\n"].concat()),
            (App::Memcached, [b"VALUE key 0 64\r\n", &VALUE[..], b"\r\nEND\r\n"].concat()),
            (App::Nginx, [&b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"[..], &CONTENT].concat()),
        ] {
            assert!(app.is_answer(&answer), "{app:?}");
            assert!(answer.starts_with(app.answer_head()), "{app:?}");
            for end in 0..answer.len() {
                assert!(!app.is_answer(&answer[..end]), "{end} bytes of {app:?}");
            }
            for at in (0..answer.len()).filter(|at| answer[*at] != b'A') {
                let mut wrong = answer.clone();
                wrong[at] ^= 1;
                let is_ignored =
                    app == App::Nginx && (b"HTTP/1.1 200 OK\r\n".len()..).contains(&at);
                assert!(is_ignored || !app.is_answer(&wrong), "byte {at} of {app:?}");
            }
        }
        assert_eq!(App::of_name("redis_pipelined"), Some(App::RedisPipelined));
    }
}
