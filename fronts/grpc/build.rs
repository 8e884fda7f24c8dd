//! Compiles the descriptors of the front's own services, which reflection shows.

use prost::Message as _;

/// Files with these services.
const FILES: [&str; 4] = [
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
    "grpc/reflection/v1alpha/reflection.proto",
    "xds/service/orca/v3/orca.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=proto");
    let mut set = protox::compile(FILES, ["proto"])?;
    // Comments are of no use to reflection.
    set.file.iter_mut().for_each(|file| file.source_code_info = None);
    let out = std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    std::fs::write(std::path::Path::new(&out).join("own_services.bin"), set.encode_to_vec())?;
    Ok(())
}
