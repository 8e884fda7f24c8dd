//! Finds librocksdb before the linker does, so that its absence is told in one line.

use std::env;
use std::path::Path;
use std::process::Command;

const LIBRARY: &str = "librocksdb.so";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=ROCKSDB_LIB_DIR");

    if let Some(directory) = env::var_os("ROCKSDB_LIB_DIR") {
        let directory = Path::new(&directory);
        if directory.join(LIBRARY).exists() || directory.join("librocksdb.a").exists() {
            println!("cargo::rustc-link-search=native={}", directory.display());
        } else {
            println!(
                "cargo::error=ROCKSDB_LIB_DIR is {}, and there is no {LIBRARY} in it",
                directory.display()
            );
        }
    } else if !linker_finds_it() {
        println!("cargo::error=RocksDB is missing; to install it: apt-get install librocksdb-dev");
        println!(
            "cargo::error=where it is installed elsewhere, set ROCKSDB_LIB_DIR to the directory of {LIBRARY}"
        );
    }
}

/// Whether the linker driver rustc will call has the library on its search path.
fn linker_finds_it() -> bool {
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let Ok(answer) = Command::new(linker).arg(format!("-print-file-name={LIBRARY}")).output()
    else {
        // No such driver: rustc's own message about that is the better one.
        return true;
    };
    // Found, the answer is a path; not found, it is the bare name. A linker that does not know
    // the question says neither, and is left to speak for itself.
    String::from_utf8_lossy(&answer.stdout).trim() != LIBRARY
}
