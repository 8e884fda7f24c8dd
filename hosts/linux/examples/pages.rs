//! Measures how long each backend takes here to read and clear accessed bits of another process.
//!
//! ```text
//! cargo run --release -p wave-linux --example pages [MIB]
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Instant;

use wave_linux::memory::{AccessBits, Areas, Backend, Kind, Process, STRIP_BYTES};

const ROLE: &str = "WAVE_EXAMPLE_PAGES";
const ROUNDS: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mib: u64 = std::env::args().nth(1).as_deref().unwrap_or("2048").parse()?;
    if std::env::var_os(ROLE).is_some() {
        let memory = vec![1_u8; (mib << 20) as usize];
        println!("{}", memory.as_ptr() as u64);
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(());
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(mib.to_string()).env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("the child has no standard output")?)
        .read_line(&mut line)?;
    let start: u64 = line.trim().parse()?;
    let measured = measure(child.id() as i32, start, mib << 20);
    child.kill()?;
    child.wait()?;
    measured
}

fn measure(pid: i32, start: u64, bytes: u64) -> Result<(), Box<dyn Error>> {
    let process = Process::open(pid)?;
    let areas = Areas::open();
    let map = areas.map(&process)?;
    let map_ms = least(|| areas.map(&process).map(|_| ()).map_err(Into::into))?;
    println!(
        "mappings: {} areas in {map_ms:.3} ms, movable {} MiB",
        map.areas.len(),
        map.bytes(Kind::Movable) >> 20
    );
    let first = start - start % STRIP_BYTES;
    let addresses: Vec<u64> = (first..start + bytes).step_by(STRIP_BYTES as usize).collect();
    let gib = bytes as f64 / (1 << 30) as f64;
    for backend in Backend::ALL {
        let mut bits = match AccessBits::with(backend) {
            Ok(bits) => bits,
            Err(error) => {
                println!("{error}");
                continue;
            }
        };
        let mut strips = Vec::new();
        let ms = least(|| Ok(bits.read(&process, map.space, &addresses, &mut strips)?))?;
        let present = strips.iter().flat_map(|strip| strip.present);
        let present: u64 = present.map(|word| u64::from(word.count_ones())).sum();
        println!("{backend}: read {:.3} ms/GiB, {present} pages present", ms / gib);
        let from = start.next_multiple_of(4096);
        let whole = from..from + (bytes - 4096);
        let ms = least(|| Ok(bits.clear(&process, std::slice::from_ref(&whole)).map(|_| ())?))?;
        println!("{backend}: clear {:.3} ms/GiB", ms / gib);
    }
    Ok(())
}

/// Milliseconds of the fastest run, as other programs may use this machine.
fn least(mut what: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        what()?;
        least = least.min(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok(least)
}
