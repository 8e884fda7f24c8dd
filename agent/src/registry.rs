//! The policies that an agent binary knows by name.

use wave_core::layout::Config;
use wave_core::policy::Policy;
use wave_sched::policies;

/// Makes a policy for an enclave.
pub type Make = Box<dyn Fn(&Config) -> Box<dyn Policy + Send>>;

/// Policies by name.
#[derive(Default)]
pub struct Registry(Vec<(String, Make)>);

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Registry {
    /// The policies that Wave ships.
    pub fn shipped() -> Registry {
        policies::NAMES.iter().fold(Registry::default(), |registry, &name| {
            registry.with(name, move |config| {
                policies::by_name(name, config).expect("NAMES lists what by_name knows")
            })
        })
    }

    /// With one more policy; it hides an earlier one of the same name.
    pub fn with(
        mut self,
        name: &str,
        make: impl Fn(&Config) -> Box<dyn Policy + Send> + 'static,
    ) -> Registry {
        self.0.insert(0, (name.to_owned(), Box::new(make)));
        self
    }

    /// Every name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// The policy of this name.
    pub fn make(&self, name: &str, config: &Config) -> Option<Box<dyn Policy + Send>> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, make)| make(config))
    }
}
