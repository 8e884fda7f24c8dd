//! Dependencies point one way, and `unsafe` stays where it may be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// Crates that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    "confine",
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

/// What a crate at `from` may use of the workspace, outside its tests.
fn may_use(from: &str, to: &str) -> bool {
    match (from, to) {
        // The same host, for programs in C.
        ("hosts/c", "hosts/user") => return true,
        // The calls of programs over its sockets.
        ("hosts/preload", "hosts/posix" | "hosts/readiness") => return true,
        // Readiness is the kernel's matter, and nothing of Wave's.
        ("hosts/readiness", _) => return false,
        // A server of a user's.
        ("docs/guide/my-greeter", "hosts/user" | "hosts/codegen") => return true,
        // No real host.
        ("lab", "hosts/sim") => return true,
        // What all hosts share.
        ("hosts/user" | "hosts/linux" | "hosts/sim", "hosts/common") => return true,
        _ => {}
    }
    let layer = |place: &str| place.split('/').next().unwrap_or_default().to_owned();
    let (from, to) = (layer(from), layer(to));
    let allowed: &[&str] = match from.as_str() {
        "core" | "clients" | "confine" => &[],
        // What its loads are sent by.
        "workloads" => &["clients"],
        "subsystems" | "links" => &["core"],
        // What is sent lies in a host's payload memory.
        "wires" => &["core", "links"],
        "agent" => &["core", "links", "subsystems", "confine"],
        "fronts" => &["core", "links", "wires", "subsystems", "agent", "clients", "confine"],
        "hosts" => &["core", "links", "subsystems"],
        "scripts" => &["core", "subsystems", "hosts"],
        "lab" => &["core", "links", "subsystems", "agent"],
        // A subsystem of a user's.
        "docs" => &["core", "agent"],
        "report" => &["workloads", "lab"],
        "experiments" => &[
            "confine",
            "core",
            "links",
            "wires",
            "subsystems",
            "agent",
            "clients",
            "hosts",
            "workloads",
            "lab",
            "report",
        ],
        "benches" | "cli" => &[
            "confine",
            "core",
            "links",
            "wires",
            "subsystems",
            "agent",
            "clients",
            "fronts",
            "hosts",
            "workloads",
            "lab",
            "report",
            "experiments",
            "scripts",
        ],
        "xtask" => &["core", "links", "subsystems", "agent", "hosts", "workloads", "cli", "xtask"],
        other => panic!("architecture.md does not say what `{other}` may depend on"),
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
            // Tests may use what lies beside them, but a subsystem never sees another.
            let in_tests = dependency.kind == DependencyKind::Development;
            let siblings = from.starts_with("subsystems/") && to.starts_with("subsystems/");
            if siblings || !(in_tests || may_use(from, to)) {
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
            // A binary of a few lines that only calls its library has nothing to forbid.
            let trivial = target.is_bin() && text.lines().count() < 10 && !text.contains("unsafe");
            let forbids = text.contains("#![forbid(unsafe_code)]");
            assert!(forbids || trivial, "{} does not forbid unsafe code", target.src_path);
            roots += 1;
        }
        assert!(roots > 0, "{place} has neither library nor binary");
    }
}
