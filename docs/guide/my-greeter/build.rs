fn main() -> Result<(), wave_codegen::CodegenError> {
    wave_codegen::compile(&["proto/greeter.proto"], &["proto"])
}
