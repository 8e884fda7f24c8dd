//! Commands for a shell: none is run. Those are passed over that ask for what is so anyway.

/// sysctls of packetdrill's own `defaults.sh` and suite whose value is how we behave.
const MATCHED: &[(&str, &str)] = &[
    ("tcp_timestamps", "1"),
    ("tcp_syn_retries", "5"),
    ("tcp_synack_retries", "5"),
    ("tcp_reordering", "3"),
    ("tcp_ecn", "0"),
    ("tcp_slow_start_after_idle", "0"),
    ("tcp_window_scaling", "1"),
];

/// Whether a command may be passed over.
///
/// # Errors
/// It asks for something else; the text says what.
pub fn check(command: &str) -> Result<(), String> {
    for line in command.split(['\n', ';']).flat_map(|line| line.split("&&")) {
        let mut words = line.split_whitespace();
        let refused = |what: &str| {
            Err(format!(
                "no command runs in virtual time, and `{what}` asks for something else than what is so anyway"
            ))
        };
        match words.next() {
            None => {}
            Some("true") if words.next().is_none() => {}
            Some(path) if path.ends_with("common/defaults.sh") && words.next().is_none() => {}
            Some("sysctl") => {
                let settings = words.filter(|word| *word != "-q" && *word != "-w");
                if let Some(other) = settings.into_iter().find(|one| !is_matched(one)) {
                    return refused(other);
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
    Ok(())
}

fn is_matched(setting: &str) -> bool {
    let Some((name, value)) = setting.split_once('=') else { return false };
    let name = name.rsplit(['.', '/']).next().unwrap_or_default();
    MATCHED.contains(&(name, value))
}
