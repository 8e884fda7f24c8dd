//! Assignment of CPUs: the enclaves' cores, and one CPU outside of them for each agent.

use wave_process::cpus;

use super::Part;
use wave_terminal::Failure;

/// The CPUs of one enclave and its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// CPUs that the enclave schedules.
    pub cores: Vec<usize>,
    pub agent: usize,
    /// Whether the agent shares its CPU.
    pub shares: bool,
    /// Whether that CPU is even one of the enclave's cores.
    pub inside: bool,
}

pub fn of(parts: &[Part]) -> Result<Vec<Seat>, Failure> {
    let online = cpus::online().map_err(Failure::cannot)?;
    seats(parts, &online)
}

fn seats(parts: &[Part], online: &[usize]) -> Result<Vec<Seat>, Failure> {
    let last = *online.last().unwrap_or(&0);
    let all_but_last = if online.len() > 1 { &online[..online.len() - 1] } else { online };
    let cores: Vec<&[usize]> =
        parts.iter().map(|part| part.cpus.as_deref().unwrap_or(all_but_last)).collect();
    let taken = |cpu: &usize| cores.iter().any(|cores| cores.contains(cpu));
    let outside: Vec<usize> = online.iter().rev().copied().filter(|cpu| !taken(cpu)).collect();
    let seat = |(at, cores): (usize, &&[usize])| {
        let agent = if outside.is_empty() { last } else { outside[at % outside.len()] };
        let inside = cores.contains(&agent);
        Seat { cores: cores.to_vec(), agent, shares: parts.len() > outside.len(), inside }
    };
    Ok(cores.iter().enumerate().map(seat).collect())
}

#[cfg(test)]
mod tests {
    use super::super::Work;
    use super::*;

    fn part(cpus: Option<&str>) -> Part {
        Part {
            name: None,
            work: Work::Command(vec!["true".into()]),
            program: None,
            policy: "fifo".into(),
            device: None,
            cpus: cpus.map(|text| cpus::parse(text).unwrap()),
            patience: None,
        }
    }

    fn found(cpus: &[Option<&str>], online: &[usize]) -> Vec<(usize, bool, bool)> {
        let parts: Vec<Part> = cpus.iter().map(|cpus| part(*cpus)).collect();
        let seats = seats(&parts, online).unwrap();
        seats.into_iter().map(|seat| (seat.agent, seat.shares, seat.inside)).collect()
    }

    #[test]
    fn agents_sit_outside_if_a_cpu_is_free() {
        assert_eq!(found(&[None], &[0, 1, 2, 3]), [(3, false, false)]);
        assert_eq!(found(&[Some("3")], &[0, 1, 2, 3]), [(2, false, false)]);
        assert_eq!(found(&[Some("0-3")], &[0, 1, 2, 3]), [(3, true, true)]);
        assert_eq!(found(&[None], &[5]), [(5, true, true)]);
        let two = [Some("0"), Some("1")];
        assert_eq!(found(&two, &[0, 1, 2, 3]), [(3, false, false), (2, false, false)]);
        assert_eq!(found(&two, &[0, 1, 2]), [(2, true, false), (2, true, false)]);
    }
}
