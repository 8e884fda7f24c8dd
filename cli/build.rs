//! Generates the code of the interop service, and of the service of load reports that its tests use.

fn main() -> Result<(), wave_codegen::CodegenError> {
    println!("cargo::rerun-if-changed=build.rs");
    let protos = ["proto/interop.proto", "../fronts/grpc/proto/xds/service/orca/v3/orca.proto"];
    wave_codegen::compile(&protos, &["proto", "../fronts/grpc/proto"])
}
