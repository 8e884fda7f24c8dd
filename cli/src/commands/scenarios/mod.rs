//! `wave scenarios`: lists every kind of scenario with its fields.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use wave_app_linux::file as enclaves;
use wave_scenario::reference::{Field, fields_of};
use wave_terminal::{note, out};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave scenarios                    every kind, in a few words
  wave scenarios rpc                the fields of one kind, and an example
  wave scenarios --json             every kind, with its fields and examples

The same is in docs/reference/scenarios.md.

Exit codes: 0 listed; 2 no kind has this name.")]
pub struct ScenariosArgs {
    /// Kind of scenario to describe, or `enclave` for the files of `wave run --host linux`.
    #[arg(value_name = "KIND")]
    kind: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The form of a file.
pub struct Form {
    /// Values of `kind`; empty for files of enclaves, which have none.
    pub kinds: &'static [&'static str],
    /// Subject of such experiments.
    pub about: &'static str,
    /// Commands that run them.
    pub run: &'static str,
    /// A short file for each kind.
    pub examples: &'static [&'static str],
    /// In the order of their declaration.
    pub fields: Vec<Field>,
}

/// The forms of all files that `wave run` takes.
pub fn forms() -> Vec<Form> {
    let kinds = super::kinds();
    let of_kinds = kinds.all().iter().map(|kind| Form {
        kinds: kind.names,
        about: kind.about,
        run: kind.commands,
        examples: kind.examples,
        fields: kind.form(),
    });
    let enclaves = Form {
        kinds: &[],
        about: "Enclaves on the real kernel, with CPUs, programs and an agent each. Such a file has no `kind`.",
        run: "`sudo wave run --host linux FILE`",
        examples: &[enclaves::EXAMPLE],
        fields: fields_of::<enclaves::File>(),
    };
    of_kinds.chain([enclaves]).collect()
}

/// Name for the form of files without a kind.
pub const ENCLAVE: &str = "enclave";

/// Meaning of the table `[sweep]`, which a file of every kind may have.
pub const SWEEP: &str = "Each entry gives a list of values for one field, by its path, such as `\"run.seed\" = [1, 2, 3]`. `wave sweep FILE --out DIR` runs \
                         every combination, in the simulator if the kind has a simulation.";

/// Names of a form: its kinds, or [`ENCLAVE`].
pub fn names(form: &Form) -> &'static [&'static str] {
    if form.kinds.is_empty() { &[ENCLAVE] } else { form.kinds }
}

pub fn execute(args: &ScenariosArgs) -> ExitCode {
    let wanted = args.kind.as_deref();
    let is_wanted = |form: &Form| wanted.is_none_or(|kind| names(form).contains(&kind));
    let found: Vec<Form> = forms().into_iter().filter(is_wanted).collect();
    if found.is_empty() {
        let kind = wanted.unwrap_or_default();
        note!("wave scenarios: unknown kind `{kind}`; `wave scenarios` lists all kinds");
        return ExitCode::from(2);
    }
    match wanted {
        _ if args.json => {
            out!("{}", json!({ "forms": found.iter().map(to_json).collect::<Vec<_>>() }));
        }
        None => {
            for form in &found {
                out!("{}\n    {}\n    {}\n", names(form).join(", "), form.about, form.run);
            }
            out!("`wave scenarios KIND` lists the fields of a kind.");
        }
        Some(kind) => print(&found[0], kind),
    }
    ExitCode::SUCCESS
}

fn print(form: &Form, kind: &str) {
    out!("{}: {}\n{}\n", names(form).join(", "), form.about, form.run);
    for field in &form.fields {
        let Field { path, meaning, .. } = field;
        let form = [field.kind.clone(), field.range.clone(), default(field)];
        let form: Vec<&str> =
            form.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
        out!("  {path}\n      {}\n      {meaning}", form.join("; "));
    }
    if !form.kinds.is_empty() {
        out!("  sweep\n      table; optional\n      {SWEEP}");
    }
    let at = names(form).iter().position(|name| *name == kind).unwrap_or(0);
    out!("\nAn example:\n");
    form.examples[at].lines().for_each(|line| out!("  {line}"));
}

/// A field's default as text, or that it is required; empty for optional tables.
pub fn default(field: &Field) -> String {
    match field.default.as_deref() {
        None => "required".to_owned(),
        Some("") => String::new(),
        Some(default) => format!("default {default}"),
    }
}

fn to_json(form: &Form) -> Value {
    let field = |field: &Field| {
        json!({
            "path": field.path,
            "type": field.kind,
            "required": field.default.is_none(),
            "default": field.default.as_deref().filter(|default| !default.is_empty()),
            "range": field.range,
            "meaning": field.meaning,
        })
    };
    json!({
        "kinds": form.kinds,
        "about": form.about,
        "run": form.run,
        "examples": form.examples,
        "fields": form.fields.iter().map(field).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests;
