//! A file's fields are read, refused and described from one declaration.

use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;

use super::reference::{Field, fields_of};
use super::{ScenarioError, Source};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Outer {
    /// Name of it.
    name: String,
    /// Share of
    /// something.
    #[serde(default)]
    #[schemars(range(min = 0.5, max = 2))]
    share: f64,
    /// Tables.
    #[serde(default)]
    inner: Vec<Inner>,
    /// Loads.
    #[schemars(inner(range(min = 1, max = 9)), extend("x-default" = "the lowest"))]
    loads: Option<Vec<u32>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Inner {
    /// Its color.
    color: Option<Color>,
    /// Two numbers.
    pair: [u64; 2],
    /// Cores.
    #[schemars(range(min = 1, max = 240))]
    cores: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Color {
    /// A warm one.
    Red,
    /// UV is no color.
    DarkRed,
}

fn read(text: &str) -> Result<Outer, ScenarioError> {
    Source::new(Path::new("x.toml"), text).read()
}

#[test]
fn numbers_are_refused_outside_of_their_range_wherever_they_are() {
    for (text, expected) in [
        ("share = 3\nname = \"a\"", "x.toml:1: `share` is 3, expected 0.5 to 2"),
        ("name = \"a\"\nshare = nan", "x.toml:2: `share` is NaN, expected 0.5 to 2"),
        ("name = \"a\"\nshare = -inf", "x.toml:2: `share` is -inf, expected 0.5 to 2"),
        ("name = \"a\"\nshare = 1e300", "00000..., expected 0.5 to 2"),
        ("name = \"a\"\nloads = [\n 1,\n 10]", "x.toml:4: `loads` is 10, expected 1 to 9"),
        (
            "name = \"a\"\n[[inner]]\npair = [1, 2]\n[[inner]]\npair = [1, 2]\ncores = 0",
            "x.toml:6: `inner.cores` is 0, expected 1 to 240",
        ),
        (
            "name = \"a\"\ninner = [{ pair = [1, 2], cores = 241 }]",
            "x.toml:2: `inner.cores` is 241",
        ),
        (
            "name = \"a\"\nshare = 0x7fff_ffff_ffff_ffff",
            "`share` is 9223372036854775807, expected 0.5",
        ),
        ("name = \"a\"\nshare = 9223372036854775808", "x.toml:2: `share` is 9223372036854775808"),
        ("name = \"a\"\nshare = +1_0.0", "`share` is 10, expected 0.5 to 2"),
        (
            "name = \"a\"\ninner = [[\"red\", [1, 2], 999]]",
            "x.toml:2: `inner` is a list, expected a table",
        ),
        (
            "name = \"a\"\n[[inner]]\npair = [1, 2, 3]",
            "x.toml:3: `inner.pair` has 3 values, expected 2",
        ),
        (
            "name = \"a\"\n[[inner]]\npair = [1, 2]\ncolor = { red = {} }",
            "x.toml:4: `inner.color` is a table, expected a value",
        ),
        ("name = \"a\"\nshares = 1", "x.toml:2: unknown field `shares`, expected one of `name`, "),
        ("share = 1", "x.toml:1: missing field `name`"),
        ("name = \"a\"\n[[inner]]\npair = [1]", "x.toml:3: `inner[0].pair`: "),
        (
            "name = \"a\"\nshare = \"1\"",
            "x.toml:2: `share`: invalid type: string \"1\", expected a number",
        ),
    ] {
        let refused = read(text).expect_err(text).to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let read = read("name = \"a\"\nshare = 2\ninner = [{ pair = [1, 2], cores = 240 }]").unwrap();
    // Seeds may have all 64 bits.
    let most = self::read("name = \"a\"\ninner = [{ pair = [18446744073709551615, 0] }]").unwrap();
    assert_eq!(most.inner[0].pair, [u64::MAX, 0]);
    let Inner { color, pair, cores } = &read.inner[0];
    assert_eq!((read.name.as_str(), read.share, read.loads), ("a", 2.0, None));
    assert_eq!((color.is_none(), *pair, *cores), (true, [1, 2], Some(240)));
}

#[test]
fn fields_have_type_default_range_and_meaning_in_the_order_of_declaration() {
    let field = |path: &str, kind: &str, default: Option<&str>, range: &str, meaning: &str| Field {
        path: path.to_owned(),
        kind: kind.to_owned(),
        default: default.map(str::to_owned),
        range: range.to_owned(),
        meaning: meaning.to_owned(),
    };
    let colors = "Its color. `red`: a warm one; `dark-red`: UV is no color.";
    let expected = [
        field("name", "text", None, "", "Name of it."),
        field("share", "number", Some("0"), "0.5 to 2", "Share of something."),
        field("inner", "tables", Some(""), "", "Tables."),
        field("inner.color", "one of `red`, `dark-red`", Some(""), "", colors),
        field("inner.pair", "list of 2 whole numbers", None, "", "Two numbers."),
        field("inner.cores", "whole number", Some(""), "1 to 240", "Cores."),
        field("loads", "list of whole numbers", Some("the lowest"), "1 to 9", "Loads."),
    ];
    assert_eq!(fields_of::<Outer>(), expected);
}

#[test]
fn value_is_refused_at_its_line_and_a_missing_one_at_its_table() {
    let text = "a = 1\n[[b]]\nc = [1,\n 2]\n[[b]]\nc = 2\nd = { e = 3 }\n";
    let source = Source::new(Path::new("x.toml"), text);
    for (path, line) in [
        ("a", 1),
        ("b[0].c[1]", 4),
        ("b[1].c", 6),
        ("b[1].d.e", 7),
        ("z", 1),
        ("b[1].z", 5),
        ("b[7]", 2),
    ] {
        assert_eq!(source.refuse(path, "no").to_string(), format!("x.toml:{line}: no"), "{path}");
    }
}

#[test]
fn field_is_found_by_its_path_and_refused_where_it_is() {
    let text = "a.b = 1\nlist = [{ c = 1 },\n { d = 2 }]\n";
    let source = Source::new(Path::new("x.toml"), text);
    let has = |path| source.has(path);
    assert!(has("a.b") && has("list[1].d") && has("list"));
    assert!(!has("a.c") && !has("list[0].d") && !has("list[2]") && !has("b"));
    assert!(source.without(&["a.c", "list[0].d"], "is wrong").is_ok());
    let refused = source.without(&["z", "list[1].d"], "has no meaning here").unwrap_err();
    assert_eq!(refused.to_string(), "x.toml:3: `list.d` has no meaning here");
}
