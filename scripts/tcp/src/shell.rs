//! Shell commands: none is executed. Some choose [`Settings`]; those that ask for behaviour that we have anyway are skipped.

use wave_tcp::congestion::Algorithm;

use crate::script::Settings;

/// sysctls of packetdrill's own `defaults.sh` and suite whose values match our behaviour, but for the first: the engine sends nine
/// SYNs (RFC 9293, MUST-23: at least three minutes).
const MATCHED: &[(&str, &str)] = &[
    ("tcp_syn_retries", "5"),
    ("tcp_synack_retries", "5"),
    ("tcp_reordering", "3"),
    ("tcp_ecn", "2"),
    ("tcp_slow_start_after_idle", "0"),
    ("tcp_window_scaling", "1"),
    ("tcp_sack", "1"),
    ("tcp_dsack", "1"),
];

/// Applies the settings that a command chooses.
///
/// # Errors
/// It asks for a setting that is neither our behaviour nor selectable; the text names it.
pub fn apply(command: &str, settings: &mut Settings) -> Result<(), String> {
    for line in command.split(['\n', ';']).flat_map(|line| line.split("&&")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let refused = |what: &str| {
            Err(format!(
                "`{what}` is not supported: no command is executed, and only a few settings can be chosen"
            ))
        };
        match words[..] {
            [] | ["true"] => {}
            [path] if path.ends_with("common/defaults.sh") => {}
            // It undoes the changes of set_sysctls.py for the scripts that follow.
            [path] if path.starts_with("/tmp/sysctl_restore_") => {}
            ["sysctl", ref rest @ ..] => {
                for setting in rest.iter().filter(|word| **word != "-q" && **word != "-w") {
                    if !choose(setting, settings) {
                        return refused(setting);
                    }
                }
            }
            [path, ref rest @ ..] if path.ends_with("common/set_sysctls.py") => {
                if let Some(other) = rest.iter().find(|setting| !choose(setting, settings)) {
                    return refused(other);
                }
            }
            ["ethtool", "-K", "tun0", "tso", "off", "gso", "off"] => {
                settings.takes_super_packets = false;
            }
            [other, ..] => return refused(other),
        }
    }
    Ok(())
}

/// Applies a setting, `net.ipv4.tcp_sack=1` or the same as a path. Returns whether it can be chosen, or matches our behaviour.
fn choose(setting: &str, settings: &mut Settings) -> bool {
    let Some((name, value)) = setting.split_once('=') else { return false };
    let name = name.rsplit(['.', '/']).next().unwrap_or_default();
    match (name, value) {
        ("tcp_congestion_control", _) => match Algorithm::by_name(value) {
            Some(algorithm) => settings.algorithm = algorithm,
            None => return false,
        },
        ("tcp_timestamps", "0" | "1") => settings.has_timestamps = value == "1",
        pair => return MATCHED.contains(&pair),
    }
    true
}
