//! Generates the code of the interop service.

fn main() -> Result<(), wave_codegen::CodegenError> {
    println!("cargo::rerun-if-changed=build.rs");
    wave_codegen::compile(&["proto/interop.proto"], &["proto"])
}
