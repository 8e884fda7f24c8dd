//! The subsystems and policies that an agent binary knows.

use wave_core::layout::Config;
use wave_core::policy::Policy;
use wave_core::settings::{Known, Policies, Setting};
use wave_core::subsystem::{Subsystem, SubsystemId};

/// The subsystems of this project, in the order of their numbers.
pub static SUBSYSTEMS: [&Subsystem; 3] =
    [&wave_sched::SUBSYSTEM, &wave_memory::SUBSYSTEM, &wave_rpc::SUBSYSTEM];

/// User-registered policies, for any subsystem.
type Own = Policies<dyn Policy + Send>;

/// Subsystems, and policies by name.
#[derive(Default)]
pub struct Registry {
    own: Vec<&'static Own>,
    subsystems: Vec<&'static Subsystem>,
    keeps_rights: bool,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Registry {
    /// The subsystems that Wave ships, with their policies.
    pub fn shipped() -> Registry {
        Registry { subsystems: SUBSYSTEMS.to_vec(), ..Registry::default() }
    }

    /// Adds a subsystem. Panics if its number or name is taken, or if its number is reserved for Wave.
    pub fn with_subsystem(mut self, subsystem: &'static Subsystem) -> Registry {
        let (id, least) = (subsystem.id, SubsystemId::OUTSIDE);
        assert!(id.number() >= least, "{id} is reserved: numbers of your own begin at {least}");
        let is_taken =
            |known: &&&Subsystem| known.id == subsystem.id || known.name == subsystem.name;
        if let Some(known) = self.subsystems.iter().find(is_taken) {
            let (id, name) = (subsystem.id, subsystem.name);
            panic!("{id}, `{name}`, conflicts with {}, `{}`", known.id, known.name);
        }
        self.subsystems.push(subsystem);
        self
    }

    /// Adds policies of your own; they hide earlier ones of the same names.
    ///
    /// # Panics
    /// The default of a setting is not a valid value for it.
    pub fn with_policies(mut self, policies: &'static Policies<dyn Policy + Send>) -> Registry {
        policies.0.iter().for_each(|(known, _)| check_defaults(known));
        self.own.insert(0, policies);
        self
    }

    /// Lets agents keep all of their rights, for policies that open files or start processes while they run. Otherwise an agent
    /// gives up the rights that decisions do not need once it is attached (`docs/threat-model.md`, "Confinement").
    pub fn unconfined(mut self) -> Registry {
        self.keeps_rights = true;
        self
    }

    /// Whether agents are unconfined.
    pub(crate) fn keeps_rights(&self) -> bool {
        self.keeps_rights
    }

    /// Descriptors of the registered subsystems.
    pub fn subsystems(&self) -> &[&'static Subsystem] {
        &self.subsystems
    }

    /// The subsystem of this number.
    pub fn subsystem(&self, id: SubsystemId) -> Option<&'static Subsystem> {
        self.subsystems.iter().find(|known| known.id == id).copied()
    }

    /// The names of policies that [`Registry::make`] knows, user-registered ones first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let shipped = self.deciding().flat_map(|known| self.policies_of(known));
        self.own_policies().chain(shipped).map(|policy| policy.name)
    }

    /// Describes each policy in text: a line `NAME (SUBSYSTEM): ABOUT`, and an indented line for each of its settings.
    /// User-registered policies are for `any` subsystem.
    pub fn describe(&self) -> String {
        let own = self.own_policies().map(|policy| ("any", policy));
        let of = |known: &'static Subsystem| {
            self.policies_of(known).map(move |policy| (known.name, policy))
        };
        let shipped = self.deciding().flat_map(of);
        let mut text = String::new();
        for (subsystem, Known { name, about, settings }) in own.chain(shipped) {
            text += &format!("{name} ({subsystem}): {about}\n");
            for setting in settings {
                let Setting { default, help, .. } = setting;
                text += &format!("    {setting} (default {default}): {help}\n");
            }
        }
        text
    }

    /// Subsystems whose policies implement [`Policy`].
    fn deciding(&self) -> impl Iterator<Item = &'static Subsystem> {
        self.subsystems.iter().copied().filter(|known| known.make.is_some())
    }

    /// The names of policies for a host of this subsystem.
    fn names_for(&self, subsystem: &'static Subsystem) -> String {
        let policies = self.own_policies().chain(self.policies_of(subsystem));
        policies.map(|policy| policy.name).collect::<Vec<_>>().join(", ")
    }

    /// User-registered policies. Of several with the same name, only the first: the one that [`Registry::make`] makes.
    pub fn own_policies(&self) -> impl Iterator<Item = Known> {
        let all = || self.own.iter().flat_map(|own| own.0).map(|(known, _)| *known);
        let is_first = move |at: usize, name| all().take(at).all(|earlier| earlier.name != name);
        let first = all().enumerate().filter(move |(at, policy)| is_first(*at, policy.name));
        first.map(|(_, policy)| policy)
    }

    /// The policies of a subsystem, without those that a user-registered policy hides. Policies that steer calls are never
    /// hidden: their names are separate.
    pub fn policies_of(&self, subsystem: &'static Subsystem) -> impl Iterator<Item = Known> {
        let is_hidden =
            |policy: &Known| subsystem.make.is_some() && self.own(policy.name).is_some();
        subsystem.policies.iter().copied().filter(move |policy| !is_hidden(policy))
    }

    /// The list of user-registered policies that has the one named in `text`, if any.
    pub fn own(&self, text: &str) -> Option<&'static Own> {
        let is_it =
            |own: &&&'static Own| own.0.iter().any(|(known, _)| known.name == name_of(text));
        self.own.iter().find(is_it).copied()
    }

    fn unknown(&self, name: &str) -> String {
        let steers = |known: &&Subsystem| known.make.is_none() && has(known, name);
        if self.subsystems.iter().copied().any(|known| steers(&known)) {
            return format!("`{name}` steers calls: give it as --steer, with --rpc");
        }
        let all =
            self.deciding().map(|known| format!("for {}: {}", known.name, self.names_for(known)));
        let all = all.collect::<Vec<_>>().join("; ");
        let own = match self.own.is_empty() {
            true => {
                "; a policy of your own needs your own agent or laboratory (docs/guide/write-your-own-policy.md)"
            }
            false => "",
        };
        format!("there is no policy `{name}`; known policies {all}{own}")
    }

    /// Checks that the policy of this name, with the settings that follow the name, can be made for some host.
    ///
    /// # Errors
    /// Names the unknown policy or setting, or the invalid value, and what is allowed.
    pub fn check(&self, text: &str) -> Result<(), String> {
        // The smallest enclave suffices for a check.
        let config = Config { subjects: 1, ..Config::coherent(1) };
        if let Some(own) = self.own(text) {
            return own.make(text, &config).map(drop).map_err(|error| error.to_string());
        }
        // Several subsystems may have a policy of this name, each with its own settings.
        let name = name_of(text);
        let mut refused = self.unknown(name);
        for make in self.deciding().filter(|known| has(known, name)).filter_map(|known| known.make)
        {
            match make(text, &config) {
                Ok(_) => return Ok(()),
                Err(error) => refused = error.to_string(),
            }
        }
        Err(refused)
    }

    /// Makes the policy of this name, with the settings that follow the name, for a host of this configuration.
    ///
    /// # Errors
    /// As [`Registry::check`], and if the policy is for another subsystem than the host's.
    pub fn make(&self, text: &str, config: &Config) -> Result<Box<dyn Policy + Send>, String> {
        if let Some(own) = self.own(text) {
            return own.make(text, config).map_err(|error| error.to_string());
        }
        let name = name_of(text);
        let Some(wanted) = self.subsystem(config.subsystem) else {
            let known =
                self.subsystems.iter().map(|known| format!("{} ({})", known.id, known.name));
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "this host needs a policy for {}, which this agent does not know; it knows {known}",
                config.subsystem
            ));
        };
        if !has(wanted, name) {
            let other = self.deciding().find(|known| has(known, name));
            let Some(other) = other else { return Err(self.unknown(name)) };
            return Err(format!(
                "policy `{name}` is for {}, but this host needs one for {}; use one of: {}",
                other.name,
                wanted.name,
                self.names_for(wanted)
            ));
        }
        let make = wanted.make.ok_or_else(|| self.unknown(name))?;
        make(text, config).map_err(|error| error.to_string())
    }
}

/// The part of `text` before the settings.
fn name_of(text: &str) -> &str {
    text.split_once(':').map_or(text, |(name, _)| name)
}

fn has(subsystem: &Subsystem, name: &str) -> bool {
    subsystem.policies.iter().any(|policy| policy.name == name)
}

fn check_defaults(policy: &Known) {
    for setting in policy.settings {
        let Setting { key, default, .. } = setting;
        let name = policy.name;
        assert!(
            setting.has_valid_default(),
            "policy `{name}`: the default of `{key}` is {default}, not {setting}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads() -> Config {
        Config { subsystem: wave_sched::SUBSYSTEM.id, subjects: 8, ..Config::coherent(1) }
    }

    #[test]
    fn settings_reach_the_policy_and_wrong_settings_are_refused() {
        let (config, memory) = (threads(), wave_memory::serve::config(8));
        static MINE: Own = Policies(&[(
            Known {
                name: "mine",
                about: "",
                settings: &[Setting::number("depth", "1", 1..=9, "")],
            },
            |config, _| Ok(Box::new(wave_sched::policies::fifo::Fifo::new(config))),
        )]);
        let registry = Registry::shipped().with_policies(&MINE);
        assert_eq!(registry.names().next(), Some("mine"));
        let made = |text, config| registry.make(text, config).map(|policy| policy.name());
        assert_eq!(made("shinjuku:slice_us=20", &config), Ok("shinjuku"));
        assert_eq!(made("sol:shortest_ms=600,seed=7", &memory), Ok("sol"));
        assert_eq!(made("mine", &config), Ok("fifo"));
        let wrong = |text: &str| registry.check(text).unwrap_err();
        assert_eq!(made("mine:depth=3", &config), Ok("fifo"));
        assert!(wrong("mine:depth=10").contains("depth=N, 1 to 9"));
        assert!(wrong("shinjuku:slice_us=x").contains("slice_us=N"));
        assert!(wrong("sol:shortest_ms=x").contains("shortest_ms=N"));
        assert_eq!(
            wrong("theirs"),
            "there is no policy `theirs`; known policies for sched: mine, fifo, shinjuku, multi-queue, round-robin, \
             edf, vm; for memory: mine, sol, threshold"
        );
    }

    #[test]
    fn a_hidden_policy_is_not_listed() {
        const fn own(name: &'static str, about: &'static str) -> Known {
            Known { name, about, settings: &[] }
        }
        static EARLIER: Own = Policies(&[
            (own("mine", "earlier"), |_, _| unreachable!()),
            (own("fifo", "hides the shipped one"), |_, _| unreachable!()),
            (own("jbsq", "hides nothing"), |_, _| unreachable!()),
        ]);
        static LATER: Own = Policies(&[(own("mine", "later"), |config, _| {
            Ok(Box::new(wave_sched::policies::fifo::Fifo::new(config)))
        })]);
        let registry = Registry::shipped().with_policies(&EARLIER).with_policies(&LATER);
        let abouts: Vec<_> = registry.own_policies().map(|policy| policy.about).collect();
        assert_eq!(abouts, ["later", "hides the shipped one", "hides nothing"]);
        let is_listed = |subsystem, name| {
            registry.policies_of(subsystem).any(|policy: Known| policy.name == name)
        };
        assert!(!is_listed(&wave_sched::SUBSYSTEM, "fifo"));
        assert!(is_listed(&wave_sched::SUBSYSTEM, "shinjuku"));
        assert!(is_listed(&wave_rpc::SUBSYSTEM, "jbsq"));
        assert_eq!(registry.names().filter(|name| *name == "fifo").count(), 1);
        assert_eq!(registry.describe().matches("\nfifo (").count(), 1);
        assert_eq!(registry.make("mine", &threads()).unwrap().name(), "fifo");
    }

    #[test]
    fn policy_of_another_subsystem_is_refused() {
        let memory = wave_memory::serve::config(8);
        let unknown = Config { subsystem: SubsystemId::new(77), ..threads() };
        let registry = Registry::shipped();
        let refused =
            |text: &str, config: &Config| registry.make(text, config).map(drop).unwrap_err();
        assert_eq!(
            refused("sol:seed=7", &threads()),
            "policy `sol` is for memory, but this host needs one for sched; use one of: fifo, shinjuku, multi-queue, \
             round-robin, edf, vm"
        );
        assert_eq!(
            refused("fifo", &memory),
            "policy `fifo` is for sched, but this host needs one for memory; use one of: sol, threshold"
        );
        assert_eq!(
            refused("fifo", &unknown),
            "this host needs a policy for subsystem 77, which this agent does not know; it knows subsystem 1 (sched), \
             subsystem 2 (memory), subsystem 3 (rpc)"
        );
        for known in ["sol:seed=7", "fifo"] {
            assert_eq!(registry.check(known), Ok(()));
        }
    }

    #[test]
    fn steering_policy_is_refused_with_the_right_option() {
        let error = Registry::shipped().check("jbsq:k=1").unwrap_err();
        assert_eq!(error, "`jbsq` steers calls: give it as --steer, with --rpc");
    }

    /// A subsystem whose policies have the scheduler's names; one of them has a setting that the scheduler's lacks.
    static OWN: Subsystem = Subsystem {
        id: SubsystemId::new(SubsystemId::OUTSIDE + 1),
        name: "own",
        make: Some(|text, config| {
            wave_sched::policies::by_name(text.trim_end_matches(":depth=3"), config)
        }),
        ..wave_sched::SUBSYSTEM
    };

    #[test]
    fn policy_name_shared_by_two_subsystems_resolves_by_the_hosts_subsystem() {
        let registry = Registry::shipped().with_subsystem(&OWN);
        let own = Config { subsystem: OWN.id, ..threads() };
        let made = |config| registry.make("fifo:depth=3", config).map(|policy| policy.name());
        assert_eq!(made(&own), Ok("fifo"));
        assert!(made(&threads()).unwrap_err().contains("no setting `depth`"));
        assert_eq!(registry.check("fifo:depth=3"), Ok(()));
    }

    #[test]
    #[should_panic = "conflicts with subsystem 32769, `own`"]
    fn two_subsystems_with_the_same_number_are_refused() {
        static OTHER: Subsystem = Subsystem { name: "other", ..OWN };
        let _registry = Registry::shipped().with_subsystem(&OWN).with_subsystem(&OTHER);
    }

    #[test]
    #[should_panic = "subsystem 4 is reserved"]
    fn reserved_subsystem_number_is_refused() {
        static NOTES: Subsystem = Subsystem { id: SubsystemId::new(4), name: "mine", ..OWN };
        let _registry = Registry::shipped().with_subsystem(&NOTES);
    }
}
