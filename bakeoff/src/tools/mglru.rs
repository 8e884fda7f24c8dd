//! The multi-generational LRU of one cgroup: aging at an interval, and eviction of old generations
//! (Documentation/admin-guide/mm/multigen_lru.rst, "proactive reclaim").

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::cgroup::Cgroup;
use super::periodic::Periodic;
use wave_terminal::Failure;

const ENABLED: &str = "/sys/kernel/mm/lru_gen/enabled";
const COMMANDS: &str = "/sys/kernel/debug/lru_gen";
/// Only anonymous memory is evicted, as by the other tools.
const SWAPPINESS: u32 = 201;
/// The kernel never evicts the two youngest generations, and keeps four.
const YOUNGEST: u64 = 2;
const GENERATIONS: u64 = 4;

/// One setting of MGLRU's aging.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mglru {
    /// Interval at which a generation begins.
    #[schemars(range(min = 1))]
    pub age_ms: u64,
    /// Generations after which memory is evicted.
    #[schemars(range(min = YOUNGEST, max = GENERATIONS - 1))]
    pub generations: u64,
    /// Whether the setting gets the times of `slow`.
    #[serde(default)]
    pub slow: bool,
}

impl Mglru {
    pub fn describe(&self) -> String {
        let Mglru { age_ms, generations, .. } = self;
        format!("a generation every {age_ms} ms, evicted once it is {generations} old")
    }

    pub fn start(&self, cgroup: &Cgroup) -> Result<Periodic, Failure> {
        let (settings, name) = (self.clone(), cgroup.name());
        let every = Duration::from_millis(self.age_ms);
        Periodic::start("wave-mglru", every, move || settings.step(&name))
    }

    /// Starts a generation, then evicts the old ones.
    fn step(&self, name: &str) -> Result<(), String> {
        let read = || {
            let text = std::fs::read_to_string(COMMANDS).map_err(|error| error.to_string())?;
            Ok::<_, String>(nodes(&text, name))
        };
        let order = |of: &Node, order: String| match std::fs::write(COMMANDS, &order) {
            // Reclaim may have moved on since the generations were read, or the group may be gone.
            Err(error) if error.kind() == ErrorKind::InvalidInput && !read()?.contains(of) => {
                Ok(())
            }
            result => result.map_err(|error| format!("{COMMANDS}: {order}: {error}")),
        };
        for of in read()? {
            let Node { group, node, newest, .. } = of;
            order(&of, format!("+ {group} {node} {newest} {SWAPPINESS} 1"))?;
        }
        for of in read()? {
            let Node { group, node, oldest, newest } = of;
            let Some(last) = newest.checked_sub(self.generations) else { continue };
            if last >= oldest {
                order(&of, format!("- {group} {node} {last} {SWAPPINESS}"))?;
            }
        }
        Ok(())
    }
}

/// Generations of a cgroup on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    group: u64,
    node: u64,
    oldest: u64,
    newest: u64,
}

fn nodes(text: &str, name: &str) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut group = None;
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            ["memcg", number, path] => group = number.parse().ok().filter(|_| path == name),
            ["node", number] => {
                if let (Some(group), Ok(node)) = (group, number.parse()) {
                    nodes.push(Node { group, node, oldest: u64::MAX, newest: 0 });
                }
            }
            [generation, _, _, _] => {
                if let (Some(_), Some(node), Ok(generation)) =
                    (group, nodes.last_mut(), generation.parse::<u64>())
                {
                    node.oldest = node.oldest.min(generation);
                    node.newest = node.newest.max(generation);
                }
            }
            _ => {}
        }
    }
    nodes
}

/// What this kernel lacks for MGLRU, if anything.
pub fn missing() -> Option<String> {
    match std::fs::read_to_string(ENABLED) {
        Err(_) => Some("MGLRU (no /sys/kernel/mm/lru_gen: CONFIG_LRU_GEN)".to_owned()),
        Ok(text) if text.trim() == "0x0000" => {
            Some("MGLRU (it is off: echo y > /sys/kernel/mm/lru_gen/enabled)".to_owned())
        }
        Ok(_) if !Path::new(COMMANDS).exists() => {
            Some("MGLRU's commands (no /sys/kernel/debug/lru_gen: mount debugfs)".to_owned())
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_read_for_the_right_group() {
        let text = "memcg     1 /\n node     0\n          0       8256          0         246\n\
                    memcg    28 /x\n node     0\n          2      13504       4096           0\n          \
                    5        164          0           0\nmemcg 29 /x/y\n node 0\n 7 1 1 1\n";
        assert_eq!(nodes(text, "/x"), [Node { group: 28, node: 0, oldest: 2, newest: 5 }]);
        assert_eq!(nodes(text, "/z"), []);
    }
}
