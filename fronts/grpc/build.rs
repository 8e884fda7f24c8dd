//! Compiles the descriptors of the front's own services, which reflection shows.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message as _;

const REFLECTION: &str = "grpc/reflection/v1/reflection.proto";
/// The same under its earlier name, which many clients ask for.
const REFLECTION_ALPHA: &str = "grpc/reflection/v1alpha/reflection.proto";
/// Files with these services.
const FILES: [&str; 4] =
    ["grpc/health/v1/health.proto", REFLECTION, REFLECTION_ALPHA, "xds/service/orca/v3/orca.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let (made, alpha) = (out.join("proto"), out.join("proto").join(REFLECTION_ALPHA));
    fs::create_dir_all(alpha.parent().unwrap_or(&made))?;
    let reflection = fs::read_to_string(Path::new("proto").join(REFLECTION))?;
    fs::write(alpha, reflection.replace("grpc.reflection.v1;", "grpc.reflection.v1alpha;"))?;
    let mut set = protox::compile(FILES, [Path::new("proto"), &made])?;
    // Comments are of no use to reflection.
    set.file.iter_mut().for_each(|file| file.source_code_info = None);
    fs::write(out.join("own_services.bin"), set.encode_to_vec())?;
    Ok(())
}
