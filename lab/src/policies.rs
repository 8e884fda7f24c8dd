//! `policies`: every policy that this binary has, with its settings.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use wave_agent::Registry;
use wave_core::settings::{Known, Setting};
use wave_core::subsystem::Subsystem;

use wave_terminal::{note, out, program};

/// Arguments of `policies`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave policies                     all policies, by subsystem
  wave policies shinjuku            the policies of this name, in every subsystem
  wave policies --json

Settings follow a policy's name after a colon, with commas between them:
  wave agent --attach /tmp/my.sock --policy shinjuku:slice_us=10,timer=core
  wave agent --rpc /tmp/kv.sock --listen 127.0.0.1:50051 --steer jbsq:k=4

Exit codes: 0 listed; 2 no policy has this name.")]
pub struct PoliciesArgs {
    /// List only policies with this name.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Lists policies, the program's own first, and returns the exit code. A shipped policy hidden by one with the same name is not
/// listed: no command would run it.
pub fn execute(registry: &Registry, args: &PoliciesArgs) -> ExitCode {
    let (own, found) = list(registry, args.name.as_deref());
    if own.is_empty() && found.is_empty() {
        let name = args.name.as_deref().unwrap_or_default();
        let program = program();
        note!("{program} policies: there is no policy `{name}`; `{program} policies` lists all");
        return ExitCode::from(2);
    }
    if args.json {
        out!("{}", to_json(&own, &found));
    } else {
        if !own.is_empty() {
            print("of this program", "for any subsystem", &own);
        }
        found.iter().for_each(|(known, policies)| print(known.name, known.about, policies));
    }
    ExitCode::SUCCESS
}

/// The program's own policies, and those of each subsystem; only those named `name`, if given.
fn list(registry: &Registry, name: Option<&str>) -> (Vec<Known>, Vec<OfSubsystem>) {
    let is_wanted = |policy: &Known| name.is_none_or(|name| name == policy.name);
    let wanted = |subsystem: &'static Subsystem| {
        let policies: Vec<Known> = registry.policies_of(subsystem).filter(is_wanted).collect();
        (!policies.is_empty()).then_some((subsystem, policies))
    };
    let found = registry.subsystems().iter().copied().filter_map(wanted).collect();
    (registry.own_policies().filter(is_wanted).collect(), found)
}

type OfSubsystem = (&'static Subsystem, Vec<Known>);

fn print(whose: &str, about: &str, policies: &[Known]) {
    out!("{whose}: {about}");
    for policy in policies {
        out!("\n  {}\n      {}", policy.name, policy.about);
        for setting in policy.settings {
            out!("      {setting} (default {})\n          {}", setting.default, setting.help);
        }
    }
    out!("");
}

fn to_json(own: &[Known], found: &[OfSubsystem]) -> Value {
    let subsystems = found.iter().map(|(known, policies)| subsystem(known, policies));
    json!({
        "own_policies": own.iter().map(policy).collect::<Vec<_>>(),
        "subsystems": subsystems.collect::<Vec<_>>(),
    })
}

fn subsystem(subsystem: &Subsystem, policies: &[Known]) -> Value {
    json!({
        "id": subsystem.id.number(),
        "name": subsystem.name,
        "about": subsystem.about,
        "policies": policies.iter().map(policy).collect::<Vec<_>>(),
    })
}

fn policy(policy: &Known) -> Value {
    json!({
        "name": policy.name,
        "about": policy.about,
        "settings": policy.settings.iter().map(setting).collect::<Vec<_>>(),
    })
}

fn setting(setting: &Setting) -> Value {
    json!({
        "key": setting.key,
        "values": setting.to_string(),
        "default": setting.default,
        "help": setting.help,
    })
}

#[cfg(test)]
mod tests {
    use wave_core::policy::Policy;
    use wave_core::settings::Policies;

    use super::*;

    /// A default outside the allowed values would be listed and then refused.
    #[test]
    fn every_listed_default_is_accepted() {
        let registry = Registry::shipped();
        let mut names = Vec::new();
        for subsystem in registry.subsystems().iter().copied() {
            let json = super::subsystem(subsystem, subsystem.policies);
            assert_eq!(json["id"], subsystem.id.number());
            for policy in json["policies"].as_array().unwrap() {
                let name = policy["name"].as_str().unwrap();
                names.push(format!("{} {name}", subsystem.name));
                assert!(!policy["about"].as_str().unwrap().is_empty(), "{name}");
                for setting in policy["settings"].as_array().unwrap() {
                    let [key, default] =
                        ["key", "default"].map(|key| setting[key].as_str().unwrap());
                    let is_sentence = default.contains(' ');
                    if subsystem.make.is_some() && !is_sentence {
                        assert_eq!(registry.check(&format!("{name}:{key}={default}")), Ok(()));
                    }
                }
            }
        }
        for expected in ["sched shinjuku", "memory sol", "rpc jbsq"] {
            assert!(names.iter().any(|name| name == expected), "{names:?}");
        }
    }

    #[test]
    fn shipped_policy_hidden_by_an_own_one_is_not_listed() {
        static OWN: Policies<dyn Policy + Send> = Policies(&[(
            Known { name: "fifo", about: "the user's own", settings: &[] },
            |_, _| unreachable!("it is only listed"),
        )]);
        let json = |registry: &Registry| {
            let (own, found) = list(registry, Some("fifo"));
            to_json(&own, &found)
        };
        let shipped = json(&Registry::shipped());
        assert_eq!(shipped["own_policies"], json!([]));
        assert_eq!(shipped["subsystems"][0]["policies"][0]["name"], "fifo");
        let hidden = json(&Registry::shipped().with_policies(&OWN));
        assert_eq!(hidden["own_policies"][0]["about"], "the user's own");
        assert_eq!(hidden["subsystems"], json!([]));
    }

    #[test]
    fn unknown_policy_name_is_refused() {
        let args = PoliciesArgs { name: Some("nosuch".into()), json: true };
        assert_eq!(execute(&Registry::shipped(), &args), ExitCode::from(2));
    }
}
