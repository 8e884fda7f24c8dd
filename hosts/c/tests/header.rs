//! The header and the library declare the same functions, structures and constants.

use std::collections::BTreeMap;
use std::path::Path;

/// Declarations by name: a prototype, the fields of a structure, or a value, with C types and without spaces.
type Said = BTreeMap<String, String>;

fn squeeze(text: &str) -> String {
    text.chars().filter(|char| !char.is_whitespace()).collect()
}

/// A Rust type as a C type.
fn in_c(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(to) = rust.strip_prefix("*const ") {
        return format!("const {}*", in_c(to));
    }
    if let Some(to) = rust.strip_prefix("*mut ") {
        return format!("{}*", in_c(to));
    }
    let types = [
        ("u8", "uint8_t"),
        ("u16", "uint16_t"),
        ("u32", "uint32_t"),
        ("u64", "uint64_t"),
        ("i32", "int32_t"),
        ("usize", "size_t"),
        ("c_char", "char"),
        ("c_void", "void"),
    ];
    let found = types.iter().find(|(own, _)| *own == rust);
    found.map_or(rust, |(_, in_c)| in_c).to_owned()
}

/// Converts `name: type, ...` into `type name; ...`.
fn fields(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let text: Vec<&str> = lines.collect();
    let named = text.join(" ");
    let each = named.split(',').filter_map(|field| field.split_once(':'));
    each.map(|(name, of)| {
        squeeze(&format!("{}{};", in_c(of), name.trim().trim_start_matches("pub ")))
    })
    .collect()
}

fn library() -> Said {
    let mut said = Said::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in folder.read_dir().unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for exported in text.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, signature) = exported.split_once("extern \"C\" fn ").unwrap();
            let (signature, _) = signature.split_once('{').unwrap();
            let (name, rest) = signature.split_once('(').unwrap();
            let (arguments, returns) = rest.rsplit_once(") -> ").unwrap();
            let arguments = fields(arguments);
            let arguments = if arguments.is_empty() { "void;".to_owned() } else { arguments };
            said.insert(name.into(), squeeze(&format!("{} {arguments}", in_c(returns))));
        }
        for structure in text.split("#[repr(C)]\n#[derive").skip(1) {
            let (_, structure) = structure.split_once("pub struct ").unwrap();
            let (name, rest) = structure.split_once(" {").unwrap();
            said.insert(name.into(), fields(rest.split_once("\n}").unwrap().0));
        }
        for constant in text.split("\npub const WAVE_RPC_").skip(1) {
            let (name, rest) = constant.split_once(':').unwrap();
            let value = rest.split_once('=').unwrap().1.split_once(';').unwrap().0.trim();
            let value = value.replace("u64::MAX", "UINT64_MAX");
            said.insert(format!("WAVE_RPC_{name}"), value);
        }
    }
    said
}

fn header() -> Said {
    let text = include_str!("../include/wave_rpc.h");
    let mut code = String::new();
    for (at, piece) in text.split("/*").enumerate() {
        code.push_str(if at == 0 { piece } else { piece.split_once("*/").unwrap().1 });
    }
    let mut said = Said::new();
    let (mut rest, defines): (Vec<&str>, Vec<&str>) =
        code.lines().partition(|line| !line.starts_with('#'));
    for define in defines.iter().filter_map(|line| line.strip_prefix("#define WAVE_RPC_")) {
        let Some((name, value)) = define.split_once(' ') else { continue };
        if name != "OPTIONS_INIT" {
            let value = value.trim().trim_start_matches('(').trim_end_matches(')');
            said.insert(format!("WAVE_RPC_{name}"), value.into());
        }
    }
    rest.retain(|line| !line.starts_with("extern"));
    let mut code = rest.join(" ").replace("wave_rpc_call ", "uint64_t ");
    while let Some(start) = code.find("typedef struct") {
        let end = code[start..].find(if code[start..].split(';').next().unwrap().contains('{') {
            "} "
        } else {
            ";"
        });
        let end = start + end.unwrap();
        let structure = code[start..end].to_owned();
        let after = end + code[end..].find(';').unwrap() + 1;
        code.replace_range(start..after, "");
        if let Some((name, fields)) = structure.split_once('{') {
            let name = name.trim_start_matches("typedef struct").trim();
            said.insert(name.into(), squeeze(fields));
        }
    }
    for prototype in code.split(';') {
        let Some((before, arguments)) = prototype.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap();
        let returns = before.strip_suffix(name).unwrap();
        let arguments = arguments.trim_end().trim_end_matches(')').replace(',', ";");
        said.insert(name.into(), squeeze(&format!("{returns}{arguments};")));
    }
    said
}

#[test]
fn header_and_library_declare_the_same_items() {
    let (header, library) = (header(), library());
    let functions = library.keys().filter(|name| name.starts_with("wave_rpc_"));
    assert!(functions.count() > 15, "{library:#?}");
    for (name, said) in &library {
        assert_eq!(header.get(name), Some(said), "{name}");
    }
    assert_eq!(header.len(), library.len(), "{:?}", header.keys());
}
