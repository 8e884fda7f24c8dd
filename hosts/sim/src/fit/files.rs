//! The files with fitted values: reads and writes single figures without changing the text around them.

use wave_links::costs::Costs;

use super::Fit;
use crate::machine::Machine;
use crate::paper::Model;
use crate::rpc::costs::RpcCosts;

/// A file with fitted values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name in `data/fit.toml`.
    pub name: &'static str,
    /// Its path in the repository.
    pub path: &'static str,
}

/// Every file with fitted values.
pub const FILES: [File; 6] = [
    File { name: "ghost", path: "hosts/sim/machines/ghost.toml" },
    File { name: "ghost-on-host", path: "hosts/sim/machines/ghost-on-host.toml" },
    File { name: "mount-evans", path: "links/costs/mount-evans.toml" },
    File { name: "on-host", path: "links/costs/on-host.toml" },
    File { name: "coherent", path: "links/costs/coherent.toml" },
    File { name: "rpc", path: "hosts/sim/data/rpc.toml" },
];

impl File {
    /// The text that was compiled in.
    pub fn builtin(&self) -> &'static str {
        let text = match self.name {
            "rpc" => Some(RpcCosts::builtin_text()),
            name => Machine::builtin_text(name).or_else(|| Costs::builtin_text(name)),
        };
        text.expect("every file is built in")
    }
}

/// A figure that differs from the fit's.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The file's path in the repository.
    pub path: &'static str,
    /// Key of the figure in its file.
    pub key: String,
    /// Value in the file; `None` if the file lacks the key.
    pub stated: Option<f64>,
    /// Value that the fit gives.
    pub fitted: f64,
    /// Whether the file states another source than the fit.
    pub source_differs: bool,
}

impl Fit {
    /// Each figure of the fit: its file's name, key, value, and source unless the file keeps its own.
    fn figures(&self, values: &[f64]) -> Vec<(&str, &str, f64, Option<String>)> {
        let source = |source: &str| format!("fitted: wave fit: {source}");
        let fitted = self.values.iter().zip(values).map(|(value, x)| {
            (value.file.as_str(), value.key.as_str(), *x, Some(source(&value.source)))
        });
        let follows = self.follows.iter().map(|follower| {
            let x = follower.value(values[self.index(&follower.of)]);
            let source = follower.source.as_deref().map(source);
            (follower.file.as_str(), follower.key.as_str(), x, source)
        });
        fitted.chain(follows).collect()
    }

    /// The text of each file of [`FILES`] with these values in it; `read` gives the file's present text.
    ///
    /// # Panics
    ///
    /// If a file lacks a figure.
    pub fn written(&self, values: &[f64], read: &dyn Fn(&File) -> String) -> Vec<String> {
        let figures = self.figures(values);
        let write = |file: &File| {
            let mut text = read(file);
            for (name, key, value, source) in &figures {
                if *name == file.name {
                    text = set(&text, key, *value, source.as_deref())
                        .unwrap_or_else(|| panic!("{} lacks the figure {key}", file.path));
                }
            }
            text
        };
        FILES.iter().map(write).collect()
    }

    /// The figures in files that differ from these values.
    pub fn differences(&self, values: &[f64], read: &dyn Fn(&File) -> String) -> Vec<Difference> {
        let figures = self.figures(values);
        let mut differences = Vec::new();
        for file in &FILES {
            let text = read(file);
            for (_, key, fitted, source) in figures.iter().filter(|figure| figure.0 == file.name) {
                let stated = get(&text, key);
                let source_differs = match (&stated, source) {
                    (Some((_, stated)), Some(source)) => stated != source,
                    _ => false,
                };
                let stated = stated.map(|(value, _)| value);
                if stated != Some(*fitted) || source_differs {
                    let (path, key) = (file.path, (*key).to_owned());
                    differences.push(Difference {
                        path,
                        key,
                        stated,
                        fitted: *fitted,
                        source_differs,
                    });
                }
            }
        }
        differences
    }
}

/// The figure in the built-in file for a value.
pub(super) fn stated(value: &super::Value) -> Option<f64> {
    let file = FILES.iter().find(|file| file.name == value.file)?;
    get(file.builtin(), &value.key).map(|(stated, _)| stated)
}

/// The model in these texts, which are in the order of [`FILES`].
pub(super) fn parse(texts: &[String]) -> Model {
    let machine = |at: usize| Machine::parse(&texts[at]).expect("only figures were changed");
    let costs = |at: usize| Costs::parse(&texts[at]).expect("only figures were changed");
    Model {
        ghost: machine(0),
        ghost_on_host: machine(1),
        mount_evans: costs(2),
        on_host: costs(3),
        coherent: costs(4),
        rpc: RpcCosts::parse(&texts[5]).expect("only figures were changed"),
        seed: 1,
    }
}

/// The line of a figure, which is stated as `key = { ns = 1, source = "..." }` or with `value` for `ns`: the text
/// before the number, the number, the text between it and the source's, the source, and the rest.
fn parts(line: &str) -> Option<[&str; 5]> {
    let start = ["{ ns = ", "{ value = "]
        .iter()
        .find_map(|head| line.find(head).map(|at| at + head.len()))?;
    let end = start + line[start..].find(',')?;
    let quote = end + line[end..].find('"')? + 1;
    let last = line.rfind('"')?;
    Some([&line[..start], &line[start..end], &line[end..quote], &line[quote..last], &line[last..]])
}

/// Each line of a text, and whether it states the figure of this key.
fn lines<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = (&'a str, bool)> {
    let (table, key) = key.split_once('.').unwrap_or(("", key));
    let mut within = "";
    text.split_inclusive('\n').map(move |line| {
        if let Some(name) = line.trim().strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            within = name;
        }
        let rest = line.strip_prefix(key).map(str::trim_start);
        (line, within == table && rest.is_some_and(|rest| rest.starts_with('=')))
    })
}

pub(super) fn get(text: &str, key: &str) -> Option<(f64, String)> {
    let (line, _) = lines(text, key).find(|(_, states)| *states)?;
    let [_, number, _, source, _] = parts(line)?;
    Some((number.trim().parse().ok()?, source.to_owned()))
}

pub(super) fn set(text: &str, key: &str, value: f64, source: Option<&str>) -> Option<String> {
    let mut was_set = false;
    let mut changed = String::with_capacity(text.len() + 80);
    for (line, states) in lines(text, key) {
        match parts(line).filter(|_| states) {
            Some([before, _, between, old, rest]) => {
                was_set = true;
                let source = source.unwrap_or(old);
                changed.push_str(&format!("{before}{value}{between}{source}{rest}"));
            }
            None => changed.push_str(line),
        }
    }
    was_set.then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a\nlate = { ns = 1.5, source = \"assumed: b, c\" }\n[nic]\n\
                        late = { value = 2, source = \"assumed: d\" } # e\n";

    #[test]
    fn setting_a_figure_leaves_the_rest_of_the_file_unchanged() {
        assert_eq!(get(TEXT, "late"), Some((1.5, "assumed: b, c".to_owned())));
        assert_eq!(get(TEXT, "nic.late"), Some((2.0, "assumed: d".to_owned())));
        assert_eq!(get(TEXT, "host.late"), None);
        let set = set(TEXT, "nic.late", 3.0, None).unwrap();
        assert_eq!(set, TEXT.replace("value = 2", "value = 3"));
        let set = super::set(TEXT, "late", 7.0, Some("fitted: f")).unwrap();
        assert_eq!(set, TEXT.replace("1.5", "7").replace("assumed: b, c", "fitted: f"));
        assert_eq!(super::set(TEXT, "lat", 7.0, None), None);
    }

    #[test]
    fn files_with_other_figures_are_named() {
        let fit = Fit::builtin();
        let values = fit.rounded(&fit.values.iter().map(|value| value.high).collect::<Vec<_>>());
        let texts = fit.written(&values, &|file| file.builtin().to_owned());
        let of = |file: &File| texts[FILES.iter().position(|known| known == file).unwrap()].clone();
        assert_eq!(fit.differences(&values, &of), []);
        let mut other = values.clone();
        other[0] -= 1.0;
        let found = fit.differences(&other, &of);
        let named: Vec<_> = found.iter().map(|found| (found.path, found.key.as_str())).collect();
        assert_eq!(
            named,
            [
                ("hosts/sim/machines/ghost.toml", "switch_after"),
                ("hosts/sim/machines/ghost-on-host.toml", "switch_after")
            ]
        );
        assert_eq!(found[0].stated, Some(values[0]));
    }

    /// No fitted value in a file may influence the search.
    #[test]
    fn the_fit_does_not_depend_on_figures_in_the_files() {
        let fit = Fit::builtin();
        let lows: Vec<f64> = fit.values.iter().map(|value| value.low).collect();
        let highs: Vec<f64> = fit.values.iter().map(|value| value.high).collect();
        let before = fit.written(&highs, &|file| file.builtin().to_owned());
        let of =
            |file: &File| before[FILES.iter().position(|known| known == file).unwrap()].clone();
        assert_eq!(fit.written(&lows, &of), fit.written(&lows, &|file| file.builtin().to_owned()));
    }

    #[test]
    fn every_fitted_figure_of_the_files_comes_from_the_fit() {
        let fit = Fit::builtin();
        let middles: Vec<f64> = fit.values.iter().map(super::super::Value::middle).collect();
        let figures = fit.figures(&middles);
        let mut count = 0;
        for file in &FILES {
            for line in file.builtin().lines().filter(|line| line.contains("source = \"fitted")) {
                count += 1;
                let key = line.split(" =").next().unwrap();
                let known = figures.iter().any(|figure| (figure.0, figure.1) == (file.name, key));
                assert!(known, "{}: {line}", file.path);
            }
        }
        assert!(count > 0);
    }
}
