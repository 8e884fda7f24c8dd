//! The policies that an agent binary knows by name.

use wave_core::layout::Config;
use wave_core::policy::Policy;

/// Makes a policy for an enclave, of the text by which it was asked for.
pub type Make = Box<dyn Fn(&str, &Config) -> Result<Box<dyn Policy + Send>, String>>;

/// Policies by name.
#[derive(Default)]
pub struct Registry(Vec<(String, Make)>);

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
            ((*name).to_owned(), make)
        });
        let memory = wave_memory::policies::NAMES.iter().map(|name| {
            let make: Make = Box::new(|text, config| {
                let policy = wave_memory::policies::by_name(text, config);
                policy.map(|policy| policy as _).map_err(|error| error.to_string())
            });
            ((*name).to_owned(), make)
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
        self.0.insert(0, (name.to_owned(), make));
        self
    }

    /// Every name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// The policy that goes by this name, with the settings that follow it.
    pub fn make(&self, text: &str, config: &Config) -> Result<Box<dyn Policy + Send>, String> {
        let name = text.split_once(':').map_or(text, |(name, _)| name);
        let Some((_, make)) = self.0.iter().find(|(known, _)| known == name) else {
            let known = self.names().collect::<Vec<_>>().join(", ");
            return Err(format!("there is no policy `{name}`; known are: {known}"));
        };
        make(text, config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_the_policy_and_wrong_ones_are_named() {
        let config = Config { subjects: 8, ..Config::coherent(1) };
        let fifo =
            |config: &Config| wave_sched::policies::by_name("fifo", config).expect("shipped");
        let registry = Registry::shipped().with("mine", fifo);
        assert_eq!(registry.names().next(), Some("mine"));
        let made = |text| registry.make(text, &config).map(|policy| policy.name());
        assert_eq!(made("shinjuku:slice_us=20"), Ok("shinjuku"));
        assert_eq!(made("sol:shortest_ms=600,seed=7"), Ok("sol"));
        assert_eq!(made("mine"), Ok("fifo"));
        assert!(made("mine:x=1").unwrap_err().contains("no settings"));
        assert!(made("shinjuku:slice_us=x").unwrap_err().contains("slice_us=N"));
        assert!(made("sol:shortest_ms=x").unwrap_err().contains("shortest_ms=N"));
        assert!(made("theirs").unwrap_err().contains("known are: mine, fifo"));
    }
}
