//! A kind of an outside crate is read, refused, described and run as the shipped ones are.

use std::path::Path;
use std::process::ExitCode;

use my_kind::KIND;
use wave_experiments::kinds::{Host, Kinds, Options, Wanted, run};

fn kinds() -> Kinds {
    Kinds::default().with(&KIND)
}

#[test]
fn wrong_files_are_refused_with_line_and_allowed_values() {
    let [example] = KIND.examples else { panic!("one example") };
    for (from, to, expected) in [
        (
            "bytes = [1, ",
            "byte = [1, ",
            "x.toml:5: unknown field `byte`, expected one of `bytes`, ",
        ),
        ("[1, 1_000, 10_000]", "[0]", "x.toml:5: `run.bytes` is 0, expected 1 to 65536"),
        ("[1, 1_000, 10_000]", "[2, 1]", "x.toml:5: `run.bytes` has 1 after 2, expected ascending"),
        (
            "[run]\nbytes = [1, 1_000, 10_000]\n",
            "",
            "`run.bytes` is missing, expected at least one",
        ),
        ("[run]\n", "[run]\nrounds = 5\n", "x.toml:5: `run.rounds` is 5, expected 6 to 1000"),
        ("\"pipe\"", "\"pip\"", "expected one of `load`, "),
    ] {
        assert!(example.contains(from), "{from}");
        let refused = kinds().read(Path::new("x.toml"), &example.replace(from, to), None).err();
        let refused = refused.expect("the file is refused").to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn fields_are_described_with_types_defaults_and_ranges() {
    let fields = KIND.form();
    let paths: Vec<&str> = fields.iter().map(|field| &*field.path).collect();
    let expected = ["name", "description", "kind", "run", "run.bytes", "run.seconds", "run.rounds"];
    assert_eq!(paths, expected);
    let [bytes, rounds] = [&fields[4], &fields[6]];
    assert_eq!((&*bytes.kind, bytes.default.as_deref()), ("list of whole numbers", None));
    assert_eq!((rounds.default.as_deref(), &*rounds.range), (Some("10"), "6 to 1000"));
}

#[test]
fn run_leaves_a_report_and_machine_readable_files() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("x.toml");
    std::fs::write(&file, KIND.examples[0].replace("[run]", "[run]\nseconds = 0.001")).unwrap();
    let wanted = Wanted { host: Host::User, quiet: true, live: false, record: None };
    let options = Options { wanted, out: out.path(), resume: false, agent: None, json: false };
    assert_eq!(run(&kinds(), &file, &options).unwrap(), ExitCode::SUCCESS);
    for name in ["rows.csv", "results.json", "report.html"] {
        assert!(out.path().join("my-pipe").join(name).exists(), "{name}");
    }
    // The kind has no simulation.
    let options = Options { wanted: Wanted { host: Host::Sim, ..wanted }, ..options };
    let refused = run(&kinds(), &file, &options).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    assert!(refused.to_string().contains("no --host sim"), "{refused}");
}
