//! Commands for a shell: none is run. Those are passed over that ask for what is so anyway, and a sysctl may choose congestion control.

use wave_tcp::congestion::Algorithm;

/// sysctls of packetdrill's own `defaults.sh` and suite whose value is how we behave.
const MATCHED: &[(&str, &str)] = &[
    ("tcp_timestamps", "1"),
    ("tcp_syn_retries", "5"),
    ("tcp_synack_retries", "5"),
    ("tcp_reordering", "3"),
    ("tcp_ecn", "2"),
    ("tcp_slow_start_after_idle", "0"),
    ("tcp_window_scaling", "1"),
];

/// Whether a command may be passed over; and the congestion control that it chooses for all connections, if it does.
///
/// # Errors
/// It asks for something else; the text says what.
pub fn check(command: &str) -> Result<Option<Algorithm>, String> {
    let mut chosen = None;
    for line in command.split(['\n', ';']).flat_map(|line| line.split("&&")) {
        let mut words = line.split_whitespace();
        let refused = |what: &str| {
            Err::<Option<Algorithm>, _>(format!(
                "no command runs in virtual time, and `{what}` asks for something else than what is so anyway"
            ))
        };
        match words.next() {
            None => {}
            Some("true") if words.next().is_none() => {}
            Some(path) if path.ends_with("common/defaults.sh") && words.next().is_none() => {}
            Some("sysctl") => {
                let settings = words.filter(|word| *word != "-q" && *word != "-w");
                for setting in settings {
                    match algorithm(setting) {
                        Some(algorithm) => chosen = Some(algorithm),
                        None if is_matched(setting) => {}
                        None => return refused(setting),
                    }
                }
            }
            Some(path) if path.ends_with("common/set_sysctls.py") => {
                if let Some(other) = words.find(|one| !is_matched(one)) {
                    return refused(other);
                }
            }
            Some(other) => return refused(other),
        }
    }
    Ok(chosen)
}

/// A setting's last name, and its value.
fn parts(setting: &str) -> Option<(&str, &str)> {
    let (name, value) = setting.split_once('=')?;
    Some((name.rsplit(['.', '/']).next().unwrap_or_default(), value))
}

fn algorithm(setting: &str) -> Option<Algorithm> {
    let (_, value) = parts(setting).filter(|(name, _)| *name == "tcp_congestion_control")?;
    Algorithm::by_name(value)
}

fn is_matched(setting: &str) -> bool {
    parts(setting).is_some_and(|setting| MATCHED.contains(&setting))
}
