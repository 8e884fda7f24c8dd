//! Policies against the variant without one: a row of figures each, and a sentence.

use wave_report::number::short;

use super::{Compared, Ran, Variant};

/// Columns of the policies against the variant without one.
pub(super) const AGAINST: [&str; 12] = [
    "variant",
    "resident\nless %",
    "net %",
    "GET p50\nratio",
    "p99\nratio",
    "bare p50\nratio",
    "p99\nratio",
    "CPU %\nper 4 GiB",
    "CPU %\nin total",
    "refaults\n/s",
    "since the\nfirst GET",
    "held\nback",
];

/// What each policy saves and costs, in one sentence; None without a policy.
pub(super) fn conclusion(host: &str, variants: &[Variant]) -> Option<String> {
    let all: Vec<String> = variants
        .iter()
        .filter_map(|Variant { ran, compared, .. }| Some(compared.as_ref()?.words(&ran.name)))
        .collect();
    let simulated = if host == "sim" { "In simulation, " } else { "" };
    (!all.is_empty()).then(|| format!("{simulated}{}.", all.join("; ")))
}

impl Compared {
    /// A row below [`AGAINST`].
    pub(super) fn row(&self, ran: &Ran) -> Vec<String> {
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), short);
        let percent = |share: Option<f64>| ratio(share.map(|share| share * 100.0));
        let [refaults, pressure] = ran.held_back;
        vec![
            ran.name.clone(),
            percent(Some(self.resident_reduction)),
            percent(self.net_reduction),
            ratio(self.get_p50_ratio),
            ratio(self.get_p99_ratio),
            ratio(self.raw_get_p50_ratio),
            ratio(self.raw_get_p99_ratio),
            percent(self.daemon_core_share),
            percent(self.daemon_core_share_whole),
            ratio(self.refaults_per_second),
            self.refaults_in_all.to_string(),
            format!("{refaults}, {pressure}"),
        ]
    }

    /// What it saves and costs, in words.
    fn words(&self, name: &str) -> String {
        let percent = |share: f64| format!("{}%", short(share * 100.0));
        let net = self.net_reduction.map_or_else(String::new, |net| {
            format!(" ({} after subtracting compressed swap, host and agent)", percent(net))
        });
        let cpu = self.daemon_core_share_whole.map_or_else(
            || "an unknown share of a core".to_owned(),
            |share| format!("{} of a core", percent(share)),
        );
        let tail = self.get_p99_ratio.map_or_else(
            || "; latencies are not known".to_owned(),
            |ratio| format!(" and a GET p99 of {} times that without a policy", short(ratio)),
        );
        let reduction = percent(self.resident_reduction);
        format!(
            "\"{name}\" takes {reduction} of the resident set out of memory{net}, for {cpu}{tail}"
        )
    }
}
