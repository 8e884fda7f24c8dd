//! Whole latency distributions: serialized HdrHistograms, which can be merged (percentiles cannot).

use std::collections::HashSet;

use super::model::RunResult;
use crate::slug;

/// Name and content of each file: one per variant, load and class.
pub fn files(result: &RunResult) -> Vec<(String, String)> {
    let mut taken = HashSet::new();
    let mut files = Vec::new();
    for variant in &result.variants {
        for point in &variant.points {
            for class in &point.classes {
                let histogram = &class.histogram;
                if histogram.is_empty() {
                    continue;
                }
                let name = format!(
                    "{}-{:.0}-{}",
                    slug(&variant.name),
                    point.offered_per_second,
                    slug(&class.name)
                );
                files.push((unique(name, &mut taken) + ".b64", format!("{histogram}\n")));
            }
        }
    }
    files
}

/// `name`, with a number appended if it is taken: a search may try a load twice.
fn unique(name: String, taken: &mut HashSet<String>) -> String {
    let mut candidate = name.clone();
    let mut count = 1;
    while !taken.insert(candidate.clone()) {
        count += 1;
        candidate = format!("{name}-{count}");
    }
    candidate
}
