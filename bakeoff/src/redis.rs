//! A redis server whose memory is managed, and its client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::program::{FILL_PATIENCE, paced};
use wave_terminal::Failure;

/// Bytes of a value in redis.
const VALUE_BYTES: usize = 2_000;
/// Commands in flight to redis.
const COMMANDS: usize = 100;

/// A port that is free now.
pub fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Path of the redis server; Debian's redis-tools install it under another name.
pub fn redis_program() -> Option<&'static str> {
    let places = ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"];
    places.into_iter().find(|path| Path::new(path).exists())
}

/// The command line of a server on this port.
pub fn server_words(port: u16) -> Result<Vec<String>, Failure> {
    let program = redis_program().ok_or_else(|| {
        Failure::Cannot("redis is not installed: apt-get install redis-tools".to_owned())
    })?;
    let port = port.to_string();
    let words = [program, "--port", &port, "--bind", "127.0.0.1", "--save", ""];
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// A client of a redis server, which knows its keys.
pub struct Redis {
    stream: TcpStream,
    keys: usize,
    rng: Pcg64Mcg,
    answers: Vec<u8>,
}

impl Redis {
    /// Connects and sets all keys.
    pub fn connect(port: u16, bytes: u64, seed: u64) -> std::io::Result<Redis> {
        let began = Instant::now();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) if began.elapsed() > FILL_PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_nodelay(true)?;
        let keys = bytes as usize / VALUE_BYTES;
        let rng = Pcg64Mcg::seed_from_u64(seed);
        let mut redis = Redis { stream, keys, rng, answers: Vec::new() };
        redis.fill()?;
        Ok(redis)
    }

    fn fill(&mut self) -> std::io::Result<()> {
        let mut keys = 0..self.keys;
        while !keys.is_empty() {
            let (mut commands, mut count) = (Vec::new(), 0);
            for key in keys.by_ref().take(COMMANDS) {
                let mut value = vec![b'x'; VALUE_BYTES];
                self.rng.fill(&mut value[..VALUE_BYTES / 2]);
                let key = format!("key:{key}");
                let length = key.len();
                write!(commands, "*3\r\n$3\r\nSET\r\n${length}\r\n{key}\r\n${VALUE_BYTES}\r\n")?;
                commands.extend(value);
                commands.extend(b"\r\n");
                count += 1;
            }
            self.stream.write_all(&commands)?;
            self.read(count * b"+OK\r\n".len())?;
        }
        Ok(())
    }

    fn read(&mut self, bytes: usize) -> std::io::Result<()> {
        self.answers.resize(bytes, 0);
        self.stream.read_exact(&mut self.answers)
    }

    /// GETs random keys of the first half at this rate. Asks for one byte of each value: enough to touch it.
    pub fn ask_at(mut self, rate: f64) -> std::io::Result<()> {
        paced(rate, |_, mut count| {
            while count > 0 {
                let group = count.min(COMMANDS);
                let mut commands = Vec::new();
                for _ in 0..group {
                    let key = format!("key:{}", self.rng.random_range(0..self.keys / 2));
                    let at = VALUE_BYTES - 1;
                    let (length, digits) = (key.len(), at.to_string().len());
                    write!(
                        commands,
                        "*4\r\n$8\r\nGETRANGE\r\n${length}\r\n{key}\r\n${digits}\r\n{at}\r\n${digits}\r\n{at}\r\n"
                    )?;
                }
                self.stream.write_all(&commands)?;
                self.read(group * b"$1\r\nx\r\n".len())?;
                count -= group;
            }
            Ok(())
        })
    }
}
