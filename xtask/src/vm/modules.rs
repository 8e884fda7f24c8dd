//! Kernel modules: the files to load, in order. Debian's packages come without `modules.dep`, so
//! dependencies are read from the modules themselves.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::kernel::{Kernel, read_module};

/// A module to load: its name and its decompressed bytes.
pub type Module = (String, Vec<u8>);

/// The named modules and their dependencies, each after its own dependencies. Modules that are
/// built into the kernel are left out.
pub fn in_order(kernel: &Kernel, names: &[String]) -> Result<Vec<Module>, String> {
    let mut files = HashMap::new();
    list(&kernel.modules.join("kernel"), &mut files);
    let built_in = std::fs::read_to_string(kernel.modules.join("modules.builtin"));
    let built_in = built_in.map_err(|error| format!("modules.builtin: {error}"))?;
    let is_built_in = |name: &str| {
        built_in.lines().any(|line| module_name(Path::new(line)).as_deref() == Some(name))
    };
    order(names, |name| {
        if is_built_in(name) {
            return Ok(None);
        }
        let file = files.get(name).ok_or_else(|| format!("the kernel has no module {name}"))?;
        read_module(file).map(Some)
    })
}

fn list(folder: &Path, files: &mut HashMap<String, PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            list(&path, files);
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
}

/// `kernel/fs/overlayfs/overlay.ko.xz` is the file of `overlay`.
fn module_name(file: &Path) -> Option<String> {
    let (name, _) = file.file_name()?.to_str()?.split_once(".ko")?;
    Some(normalised(name))
}

/// The kernel treats `-` and `_` as equal.
fn normalised(name: &str) -> String {
    name.replace('-', "_")
}

/// Depth first: a module is added after all its dependencies.
fn order(
    names: &[String],
    read: impl Fn(&str) -> Result<Option<Vec<u8>>, String>,
) -> Result<Vec<Module>, String> {
    fn visit(
        name: &str,
        read: &impl Fn(&str) -> Result<Option<Vec<u8>>, String>,
        ordered: &mut Vec<Module>,
    ) -> Result<(), String> {
        let name = normalised(name);
        if ordered.iter().any(|(known, _)| *known == name) {
            return Ok(());
        }
        let Some(bytes) = read(&name)? else { return Ok(()) };
        // depmod refuses cycles, so this terminates.
        for dependency in depends(&bytes) {
            visit(&dependency, read, ordered)?;
        }
        ordered.push((name, bytes));
        Ok(())
    }
    let mut ordered = Vec::new();
    for name in names {
        visit(name, &read, &mut ordered)?;
    }
    Ok(ordered)
}

/// The dependencies in the `.modinfo` section: zero-terminated strings, one of them `depends=a,b`.
fn depends(module: &[u8]) -> Vec<String> {
    let strings = module.split(|byte| *byte == 0);
    let found = strings.filter_map(|string| string.strip_prefix(b"depends=")).next();
    let names = String::from_utf8_lossy(found.unwrap_or_default()).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(String::from).collect()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn module(depends: &str) -> Vec<u8> {
        format!("\x7fELF\0license=GPL\0depends={depends}\0name=x\0").into_bytes()
    }

    #[test]
    fn loads_dependencies_first_and_once() {
        let ordered = order(&["kvm-amd".into(), "kvm".into()], |name| {
            Ok(match name {
                "kvm_amd" => Some(module("ccp,kvm")),
                "ccp" => Some(module("kvm")),
                "kvm" => Some(module("built-in")),
                "built_in" => None,
                other => panic!("{other} was not asked for"),
            })
        });
        let names: Vec<String> = ordered.unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["kvm", "ccp", "kvm_amd"]);
    }

    #[test]
    fn says_which_module_is_missing() {
        let error = order(&["a".into()], |name| Err(format!("no {name}"))).unwrap_err();
        assert_eq!(error, "no a");
    }

    #[test]
    fn knows_a_module_by_its_file() {
        let name = module_name(Path::new("kernel/virt/kvm-amd.ko.xz"));
        assert_eq!(name.as_deref(), Some("kvm_amd"));
        assert_eq!(module_name(Path::new("modules.order")), None);
    }
}
