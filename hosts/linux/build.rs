//! Compiles the BPF programs. Nothing of the running kernel is looked at: what they need of its types
//! is in `bpf/kernel.h`, and is relocated when they are loaded.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The names under which clang is looked for. 16 is the first that compiles all of it.
const COMPILERS: [&str; 5] = ["clang-19", "clang-18", "clang-17", "clang-16", "clang"];

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let target = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let headers =
        std::env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    let clang = compiler();
    let mut programs: Vec<PathBuf> = std::fs::read_dir("bpf")
        .expect("the folder is part of the crate")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    programs.sort();
    for program in programs {
        compile(&clang, &program, Path::new(&headers), &target);
    }
}

fn compiler() -> String {
    if let Ok(clang) = std::env::var("CLANG") {
        return clang;
    }
    let works = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    let found = COMPILERS.iter().find(works);
    found.map(ToString::to_string).unwrap_or_else(|| {
        panic!("clang is missing, which compiles the BPF programs: apt-get install clang-16, or set CLANG")
    })
}

fn compile(clang: &str, program: &Path, headers: &Path, target: &Path) {
    let arch = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "-D__TARGET_ARCH_x86",
        Ok("aarch64") => "-D__TARGET_ARCH_arm64",
        other => panic!("no BPF programs for {other:?}"),
    };
    let name = program.file_stem().expect("it has a name");
    let object = target.join(Path::new(name).with_extension("bpf.o"));
    let status = Command::new(clang)
        .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", arch])
        .arg("-isystem")
        .arg(headers)
        .arg("-Ibpf")
        .arg("-c")
        .arg(program)
        .arg("-o")
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} cannot compile {}: {status}", program.display()),
        Err(error) => panic!("{clang}: {error}"),
    }
}
