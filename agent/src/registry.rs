//! The policies that an agent binary knows by name.

use wave_core::layout::{BulkConfig, Config};
use wave_core::policy::Policy;

/// Makes a policy for an enclave, of the text by which it was asked for.
pub type Make = Box<dyn Fn(&str, &Config) -> Result<Box<dyn Policy + Send>, String>>;

/// What a policy decides about, and a host asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Threads,
    Memory,
}

impl Kind {
    /// What a host of this configuration asks about: memory's alone sends readings in bulk.
    fn of(config: &Config) -> Kind {
        if config.bulk == BulkConfig::NONE { Kind::Threads } else { Kind::Memory }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Threads => "threads",
            Kind::Memory => "memory",
        })
    }
}

/// A policy that is known by name.
struct Known {
    name: String,
    /// `None` for a user's own, of which only its user knows.
    kind: Option<Kind>,
    make: Make,
}

/// Policies by name.
#[derive(Default)]
pub struct Registry(Vec<Known>);

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Registry {
    /// The policies that Wave ships, with their settings: those of threads (see [`wave_sched::policies`]),
    /// then those of memory (see [`wave_memory::policies`]).
    pub fn shipped() -> Registry {
        let threads = wave_sched::policies::NAMES.iter().map(|name| {
            let make: Make = Box::new(|text, config| {
                wave_sched::policies::by_name(text, config).map_err(|error| error.to_string())
            });
            Known { name: (*name).to_owned(), kind: Some(Kind::Threads), make }
        });
        let memory = wave_memory::policies::NAMES.iter().map(|name| {
            let make: Make = Box::new(|text, config| {
                let policy = wave_memory::policies::by_name(text, config);
                policy.map(|policy| policy as _).map_err(|error| error.to_string())
            });
            Known { name: (*name).to_owned(), kind: Some(Kind::Memory), make }
        });
        Registry(threads.chain(memory).collect())
    }

    /// With one more policy, which takes no settings; it hides an earlier one of the same name.
    pub fn with(
        mut self,
        name: &str,
        make: impl Fn(&Config) -> Box<dyn Policy + Send> + 'static,
    ) -> Registry {
        let own = name.to_owned();
        let make: Make = Box::new(move |text, config| match text == own {
            true => Ok(make(config)),
            false => Err(format!("policy `{own}` takes no settings")),
        });
        self.0.insert(0, Known { name: name.to_owned(), kind: None, make });
        self
    }

    /// Every name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|known| known.name.as_str())
    }

    /// The names for a host that asks about this.
    fn names_for(&self, kind: Kind) -> String {
        let fits = |known: &&Known| known.kind.is_none_or(|own| own == kind);
        let names: Vec<_> = self.0.iter().filter(fits).map(|known| known.name.as_str()).collect();
        names.join(", ")
    }

    fn find(&self, text: &str) -> Result<&Known, String> {
        let name = text.split_once(':').map_or(text, |(name, _)| name);
        let found = self.0.iter().find(|known| known.name == name);
        found.ok_or_else(|| {
            let [threads, memory] = [Kind::Threads, Kind::Memory].map(|kind| self.names_for(kind));
            format!("there is no policy `{name}`; known are, for threads: {threads}; for memory: {memory}")
        })
    }

    /// Whether some host could have the policy of this name, with the settings that follow it.
    ///
    /// # Errors
    /// Says what is unknown, or no value, and what is allowed.
    pub fn check(&self, text: &str) -> Result<(), String> {
        // The smallest enclave tells.
        let config = Config { subjects: 1, ..Config::coherent(1) };
        (self.find(text)?.make)(text, &config).map(drop)
    }

    /// The policy that goes by this name, with the settings that follow it, for a host of this configuration.
    ///
    /// # Errors
    /// As [`Registry::check`], and where the policy decides about something else than the host asks about.
    pub fn make(&self, text: &str, config: &Config) -> Result<Box<dyn Policy + Send>, String> {
        let known = self.find(text)?;
        let wanted = Kind::of(config);
        if let Some(own) = known.kind
            && own != wanted
        {
            let (name, fitting) = (&known.name, self.names_for(wanted));
            return Err(format!(
                "policy `{name}` is one for {own}, and this is a host of {wanted}; known for it are: {fitting}"
            ));
        }
        (known.make)(text, config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_the_policy_and_wrong_ones_are_named() {
        let config = Config { subjects: 8, ..Config::coherent(1) };
        let memory = wave_memory::serve::config(8);
        let fifo =
            |config: &Config| wave_sched::policies::by_name("fifo", config).expect("shipped");
        let registry = Registry::shipped().with("mine", fifo);
        assert_eq!(registry.names().next(), Some("mine"));
        let made = |text, config| registry.make(text, config).map(|policy| policy.name());
        assert_eq!(made("shinjuku:slice_us=20", &config), Ok("shinjuku"));
        assert_eq!(made("sol:shortest_ms=600,seed=7", &memory), Ok("sol"));
        assert_eq!(made("mine", &config), Ok("fifo"));
        let wrong = |text| registry.check(text).unwrap_err();
        assert!(wrong("mine:x=1").contains("no settings"));
        assert!(wrong("shinjuku:slice_us=x").contains("slice_us=N"));
        assert!(wrong("sol:shortest_ms=x").contains("shortest_ms=N"));
        assert_eq!(
            wrong("theirs"),
            "there is no policy `theirs`; known are, for threads: mine, fifo, shinjuku, multi-queue, round-robin, \
             edf, vm; for memory: mine, sol, idle-age, threshold"
        );
    }

    #[test]
    fn a_host_gets_no_policy_of_another_kind() {
        let threads = Config { subjects: 8, ..Config::coherent(1) };
        let memory = wave_memory::serve::config(8);
        let registry = Registry::shipped();
        let refused = |text, config| registry.make(text, config).map(drop).unwrap_err();
        assert_eq!(
            refused("sol:seed=7", &threads),
            "policy `sol` is one for memory, and this is a host of threads; known for it are: fifo, shinjuku, \
             multi-queue, round-robin, edf, vm"
        );
        assert_eq!(
            refused("fifo", &memory),
            "policy `fifo` is one for threads, and this is a host of memory; known for it are: sol, idle-age, \
             threshold"
        );
        for known in ["sol:seed=7", "fifo"] {
            assert_eq!(registry.check(known), Ok(()));
        }
    }
}
