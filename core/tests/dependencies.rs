//! Dependencies point one way, and `unsafe` stays where it is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// Crates that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    "confine",
    "process",
    "links",
    "wires",
    "hosts/user",
    "hosts/c",
    "hosts/linux",
    "hosts/preload",
    "workloads",
];

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap()
}

/// Where a package lies below the root, `/` between its parts.
fn place(metadata: &Metadata, package: &Package) -> String {
    let folder = package.manifest_path.parent().unwrap();
    folder.strip_prefix(&metadata.workspace_root).unwrap().as_str().replace('\\', "/")
}

/// The subsystem to which a crate belongs.
fn subsystem(place: &str) -> Option<&str> {
    place.strip_prefix("subsystems/")?.split('/').next()
}

/// What a crate at `from` may use of the workspace, outside its tests.
fn may_use(from: &str, to: &str) -> bool {
    match (from, to) {
        // For tests.
        ("core/testing", "core") => return true,
        // The same host, for programs in C.
        ("hosts/c", "hosts/user") => return true,
        // The preloaded socket calls use the host's sockets and readiness.
        ("hosts/preload", "hosts/posix" | "hosts/readiness") => return true,
        // Readiness concerns only the kernel: it uses nothing of Wave.
        ("hosts/readiness", _) => return false,
        // A user's server.
        ("docs/guide/my-greeter", "hosts/user" | "hosts/codegen") => return true,
        // No real host.
        ("lab", "hosts/sim") => return true,
        // What all hosts share.
        ("hosts/user" | "hosts/linux" | "hosts/sim", "hosts/common") => return true,
        // Machines in virtual time, for tests, the fuzzer and scripts.
        ("subsystems/tcp/testbed" | "subsystems/tcp/testbed/planted", to) => {
            return ["core", "wires", "subsystems/tcp", "subsystems/tcp/planted"].contains(&to);
        }
        (from, to) if to.starts_with("subsystems/tcp/testbed") => {
            return ["fuzz", "scripts/tcp"].contains(&from);
        }
        // Laminar is a pipeline of the match-action machine.
        ("subsystems/tcp" | "subsystems/tcp/planted", "rmt") => return true,
        // Pipelines in files.
        ("rmt/json", "rmt") => return true,
        // A user's pipeline.
        ("docs/guide/my-pipeline", "rmt") => return true,
        // A fuzzer needs no product.
        ("fuzz", to) if to.starts_with("apps/") => return to == "apps/common",
        // What all products share.
        ("apps/linux" | "apps/memory" | "apps/record", "apps/common") => return true,
        _ => {}
    }
    let layer = |place: &str| place.split('/').next().unwrap_or_default().to_owned();
    let (from, to) = (layer(from), layer(to));
    let allowed: &[&str] = match from.as_str() {
        "core" | "clients" | "compare" | "confine" | "rmt" => &[],
        // The clients that send its loads.
        "workloads" => &["process", "clients"],
        "subsystems" | "process" => &["core"],
        "links" => &["core", "process"],
        "terminal" => &["process"],
        // Payloads to send lie in a host's payload memory.
        "wires" => &["core", "links"],
        "agent" => &["core", "process", "links", "subsystems", "confine"],
        "fronts" => {
            &["core", "process", "links", "wires", "subsystems", "agent", "clients", "confine"]
        }
        "hosts" => &["core", "process", "links", "subsystems"],
        "scripts" => &["core", "subsystems", "hosts"],
        "lab" => &["core", "terminal", "subsystems", "agent"],
        // A user's subsystem, and a user's kind of experiment.
        "docs" => {
            &["core", "agent", "compare", "experiments", "lab", "report", "scenario", "terminal"]
        }
        "report" => &["workloads", "compare", "terminal"],
        "scenario" => &["process"],
        "apps" => &[
            "confine",
            "core",
            "process",
            "links",
            "subsystems",
            "agent",
            "hosts",
            "terminal",
            "report",
            "scenario",
        ],
        "experiments" => &[
            "core",
            "process",
            "links",
            "subsystems",
            "agent",
            "hosts",
            "workloads",
            "compare",
            "terminal",
            "report",
            "scenario",
            "apps",
        ],
        "bakeoff" => &[
            "core",
            "process",
            "subsystems",
            "hosts",
            "terminal",
            "report",
            "scenario",
            "apps",
            "experiments",
        ],
        "fuzz" => &[
            "core",
            "process",
            "wires",
            "subsystems",
            "clients",
            "hosts",
            "workloads",
            "compare",
            "terminal",
            "apps",
        ],
        "paper" => &[
            "core",
            "process",
            "links",
            "subsystems",
            "hosts",
            "workloads",
            "compare",
            "terminal",
            "report",
            "scenario",
            "apps",
            "experiments",
        ],
        "benches" | "cli" => &[
            "rmt",
            "confine",
            "core",
            "process",
            "links",
            "wires",
            "subsystems",
            "agent",
            "clients",
            "fronts",
            "hosts",
            "workloads",
            "compare",
            "lab",
            "terminal",
            "report",
            "scenario",
            "apps",
            "experiments",
            "bakeoff",
            "fuzz",
            "paper",
            "scripts",
        ],
        "xtask" => &[
            "core",
            "process",
            "links",
            "subsystems",
            "agent",
            "hosts",
            "workloads",
            "compare",
            "cli",
            "xtask",
        ],
        other => panic!("ARCHITECTURE.md does not say what `{other}` may depend on"),
    };
    allowed.contains(&to.as_str())
}

#[test]
fn dependencies_point_one_way() {
    let metadata = metadata();
    let places: BTreeMap<_, _> = metadata
        .workspace_packages()
        .into_iter()
        .map(|package| (package.name.to_string(), place(&metadata, package)))
        .collect();
    assert!(places.len() >= 6, "{places:?}");
    let mut wrong = BTreeSet::new();
    for package in metadata.workspace_packages() {
        let from = &places[&package.name.to_string()];
        for dependency in &package.dependencies {
            let Some(to) = places.get(&dependency.name) else { continue };
            // Tests may use crates of the same layer, but a subsystem never sees another.
            let in_tests = dependency.kind == DependencyKind::Development;
            let is_foreign = subsystem(from).zip(subsystem(to)).is_some_and(|(a, b)| a != b);
            if is_foreign || !(in_tests || may_use(from, to)) {
                wrong.insert(format!("{from} -> {to}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these dependencies point the wrong way: {wrong:?}");
}

#[test]
fn only_marked_crates_contain_unsafe() {
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        let place = place(&metadata, package);
        if UNSAFE.contains(&place.as_str()) {
            continue;
        }
        let built = |target: &&cargo_metadata::Target| {
            target.is_lib() || target.is_bin() || target.is_proc_macro()
        };
        let mut roots = 0;
        for target in package.targets.iter().filter(built) {
            let text = fs::read_to_string(&target.src_path).unwrap();
            // A binary of a few lines that only calls its library need not forbid anything.
            let trivial = target.is_bin() && text.lines().count() < 10 && !text.contains("unsafe");
            let forbids = text.contains("#![forbid(unsafe_code)]");
            assert!(forbids || trivial, "{} does not forbid unsafe code", target.src_path);
            roots += 1;
        }
        assert!(roots > 0, "{place} has neither library nor binary");
    }
}

/// The guide's crate, which authors of policies build first.
#[test]
fn a_policy_of_ones_own_needs_at_most_63_packages() {
    const PACKAGES_MAX: usize = 63;
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/my-policy/Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Unlike the graph in cargo's metadata, the tree has the features of a build without tests.
    let mut tree = Command::new(cargo);
    tree.args([
        "tree",
        "--locked",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--manifest-path",
        manifest,
    ]);
    let output = tree.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    // Name and version; a package that is listed again has a star.
    let words = text.lines().filter_map(|line| line.split_once(' '));
    let packages: BTreeSet<(&str, &str)> =
        words.map(|(name, rest)| (name, rest.split(' ').next().unwrap_or_default())).collect();
    let count = packages.len();
    assert!(count > 10 && count <= PACKAGES_MAX, "{count}: {packages:?}");
    let heavy = ["tonic", "tokio", "rustls", "rocksdb", "hyper"];
    assert!(packages.iter().all(|(name, _)| !heavy.contains(name)), "{packages:?}");
}
