//! Whole latency distributions: serialized HdrHistograms, which can be merged (percentiles cannot).

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

use super::model::RunResult;
use crate::slug;

/// `histogram` as [`super::model::ClassLatency::histogram_base64`] has it: V2, deflated.
#[cfg(test)]
pub fn encode(histogram: &Histogram<u64>) -> String {
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .expect("a histogram of u64 can be serialized, and writing to memory does not fail");
    STANDARD.encode(bytes)
}

/// The histogram in `text`; None if it cannot be decoded.
pub fn decode(text: &str) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(text.trim()).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

/// Name and content of each file: one per variant, load and class.
pub fn files(result: &RunResult) -> Vec<(String, String)> {
    let mut taken = HashSet::new();
    let mut files = Vec::new();
    for variant in &result.variants {
        for point in &variant.points {
            for class in &point.classes {
                let Some(histogram) = &class.histogram_base64 else {
                    continue;
                };
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
