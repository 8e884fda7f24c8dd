//! Generates the messages of `greeter.proto`, and its methods for a server.

fn main() -> Result<(), wave_codegen::CodegenError> {
    wave_codegen::compile(&["proto/greeter.proto"], &["proto"])
}
