use super::*;

fn load(path: &Path, agent: Option<&Path>) -> Result<Box<dyn Experiment>, Failure> {
    Kinds::default().load(path, agent)
}

#[test]
fn missing_scenario_file_is_named() {
    let refused = load(Path::new("scenarios/none.toml"), None).err().expect("no such file");
    assert_eq!(refused.exit_code(), 2);
    assert!(refused.to_string().starts_with("scenarios/none.toml: cannot be read: "));
}

#[test]
fn wrong_kind_is_reported_before_unknown_fields() {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    // Fields of other kinds come first, which this kind would not have either.
    for kind in ["\"lod\"", "3", "\"Memory\""] {
        let text = format!("steer = 1\n\nkind = {kind}\n[memory]\nswap = \"1GiB\"\n");
        std::fs::write(file.path(), &text).unwrap();
        let at = format!("{}:3: `kind` is {kind}, expected one of `load`, ", file.path().display());
        let refused = load(file.path(), None).err().expect("no such kind").to_string();
        assert!(refused.starts_with(&at), "{refused}");
        assert!(
            refused.contains("`memory`, `rpc`, `udp`, `udp-preemption`, `udp-feedback`"),
            "{refused}"
        );
    }
}

#[test]
fn missing_cost_file_is_reported_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let text = "name = \"x\"\nkind = \"udp\"\n[run]\noutstanding = [1]\n[host]\nlink = \"model:mine.toml\"\n";
    std::fs::write(&file, text).unwrap();
    let refused = load(&file, None).err().expect("no such file").to_string();
    let mine = folder.path().join("mine.toml");
    let expected = format!("{}:6: `link`: {}: cannot be read: ", file.display(), mine.display());
    assert!(refused.starts_with(&expected), "{refused}");
}

#[test]
fn missing_kind_is_refused_with_a_list_of_all_kinds() {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let refusal = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        load(file.path(), None).err().expect("no kind").to_string()
    };
    let at = format!("{}:1: ", file.path().display());
    let refused = refusal("name = \"x\"\n[run]\n");
    assert!(refused.starts_with(&format!("{at}`kind` is missing, expected one of `load`, ")));
    assert!(
        Kinds::default().names().iter().all(|kind| refused.contains(&format!("`{kind}`"))),
        "{refused}"
    );
    assert!(refusal("[[enclave]]\nname = \"a\"\n").ends_with("wave run --host linux FILE"));
}

#[test]
fn custom_agent_is_refused_by_kinds_that_do_not_schedule_threads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    for file in [
        "rocksdb-sol.toml",
        "rpc-rocksdb.toml",
        "udp-outstanding.toml",
        "mtg-fig2.toml",
        "udp-feedback.toml",
    ] {
        let refusal = load(&folder.join(file), Some(Path::new("x"))).err().expect(file);
        let expected = "--agent is for scenarios that schedule threads";
        assert!(refusal.to_string().ends_with(expected), "{refusal}");
    }
}
