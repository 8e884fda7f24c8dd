//! Generates the code of the gRPC services. The compiler of `.proto` files is a crate: no protoc is needed. For a static program,
//! looks for librocksdb before the linker does, to report its absence in one line.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use prost::Message as _;

const LIBRARY: &str = "librocksdb.so";

const SERVICES: [&str; 2] = ["kv.proto", "echo.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "crt-static") {
        find_rocksdb();
    }
    make_services()
}

/// Generates messages, server traits, and the descriptors of both for reflection.
fn make_services() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(SERVICES, ["proto"])?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .bytes(".")
        .type_attribute(".", "#[allow(missing_docs)]")
        .compile_fds(descriptors)?;
    Ok(())
}

fn find_rocksdb() {
    println!("cargo::rerun-if-env-changed=ROCKSDB_LIB_DIR");

    if let Some(directory) = env::var_os("ROCKSDB_LIB_DIR") {
        let directory = Path::new(&directory);
        if directory.join(LIBRARY).exists() || directory.join("librocksdb.a").exists() {
            println!("cargo::rustc-link-search=native={}", directory.display());
        } else {
            println!(
                "cargo::error=ROCKSDB_LIB_DIR is {}, which has no {LIBRARY}",
                directory.display()
            );
        }
    } else if !linker_finds_it() {
        println!("cargo::error=RocksDB is missing; to install it: apt-get install librocksdb-dev");
        println!(
            "cargo::error=if it is installed elsewhere, set ROCKSDB_LIB_DIR to the directory of {LIBRARY}"
        );
    }
}

/// Whether the linker driver that rustc will call has the library on its search path.
fn linker_finds_it() -> bool {
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let Ok(answer) = Command::new(linker).arg(format!("-print-file-name={LIBRARY}")).output()
    else {
        // No such driver: rustc reports that better.
        return true;
    };
    // The answer is a path if the library is found, and the bare name if not. A linker that does not
    // support the question gives neither; it will report a missing library itself.
    String::from_utf8_lossy(&answer.stdout).trim() != LIBRARY
}
