//! `wave policies`: every policy that this binary has, with its settings.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use wave_agent::SUBSYSTEMS;
use wave_core::settings::{Known, Setting};
use wave_core::subsystem::Subsystem;

use crate::terminal::{note, out};

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
    /// List only policies of this name.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn execute(args: &PoliciesArgs) -> ExitCode {
    let is_wanted = |policy: &Known| args.name.as_deref().is_none_or(|name| name == policy.name);
    let wanted = |subsystem: &'static Subsystem| {
        let policies: Vec<Known> = subsystem.policies.iter().copied().filter(is_wanted).collect();
        (!policies.is_empty()).then_some((subsystem, policies))
    };
    let found: Vec<_> = SUBSYSTEMS.into_iter().filter_map(wanted).collect();
    if found.is_empty() {
        let name = args.name.as_deref().unwrap_or_default();
        note!("wave policies: there is no policy `{name}`; `wave policies` lists all");
        return ExitCode::from(2);
    }
    if args.json {
        let subsystems = found.iter().map(|(subsystem, policies)| to_json(subsystem, policies));
        out!("{}", json!({ "subsystems": subsystems.collect::<Vec<_>>() }));
    } else {
        found.iter().for_each(|(subsystem, policies)| print(subsystem, policies));
    }
    ExitCode::SUCCESS
}

fn print(subsystem: &Subsystem, policies: &[Known]) {
    out!("{}: {}", subsystem.name, subsystem.about);
    for policy in policies {
        out!("\n  {}\n      {}", policy.name, policy.about);
        for setting in policy.settings {
            out!("      {setting} (default {})\n          {}", setting.default, setting.help);
        }
    }
    out!("");
}

fn to_json(subsystem: &Subsystem, policies: &[Known]) -> Value {
    let policies = policies.iter().map(|policy| {
        json!({
            "name": policy.name,
            "about": policy.about,
            "settings": policy.settings.iter().map(setting).collect::<Vec<_>>(),
        })
    });
    json!({
        "id": subsystem.id.number(),
        "name": subsystem.name,
        "about": subsystem.about,
        "policies": policies.collect::<Vec<_>>(),
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
    use super::*;

    /// A policy whose default is not one of its values would be listed so, and refused.
    #[test]
    fn every_default_that_is_listed_is_a_value_that_is_taken() {
        let registry = wave_agent::Registry::shipped();
        let mut names = Vec::new();
        for subsystem in SUBSYSTEMS {
            let json = to_json(subsystem, subsystem.policies);
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
    fn a_name_that_no_policy_has_is_refused() {
        let args = PoliciesArgs { name: Some("nosuch".into()), json: true };
        assert_eq!(execute(&args), ExitCode::from(2));
    }
}
