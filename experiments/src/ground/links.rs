//! Costs of modelled links, and facts about them.

use wave_links::costs::Costs;

use super::Failure;
use crate::ground::fields::Link;

/// The costs of a modelled link; None for shared memory.
pub fn costs(link: &Link) -> Result<Option<Costs>, Failure> {
    match link {
        Link::Shm => Ok(None),
        Link::Builtin(name) => Ok(Some(Costs::builtin(name).expect("these are built in"))),
        Link::File(path) => {
            let bad = |error: &dyn std::fmt::Display| {
                Failure::Scenario(format!("{}: {error}", path.display()))
            };
            let text = std::fs::read_to_string(path).map_err(|error| bad(&error))?;
            Ok(Some(Costs::parse(&text).map_err(|error| bad(&error))?))
        }
    }
}

/// A fact about the link, and one for each of its costs.
pub fn facts(costs: &Costs) -> impl Iterator<Item = (String, String)> {
    let all = costs.all().into_iter().map(|(name, cost)| {
        // `dma_ns_per_kib` has its unit in its name.
        let unit = if name.contains("_ns_") { "" } else { " ns" };
        let what = format!("link {}: {} {}{unit}", costs.name, name.replace('_', " "), cost.ns);
        (what, cost.source.to_string())
    });
    std::iter::once((format!("link {}", costs.name), costs.description.clone())).chain(all)
}

/// The same for each of `links` that is modelled, once.
pub fn facts_of_all<'a>(
    links: impl Iterator<Item = &'a Link>,
) -> Result<Vec<(String, String)>, Failure> {
    let mut all: Vec<Costs> = Vec::new();
    for costs in links.filter_map(|link| costs(link).transpose()) {
        let costs = costs?;
        if !all.contains(&costs) {
            all.push(costs);
        }
    }
    Ok(all.iter().flat_map(facts).collect())
}
