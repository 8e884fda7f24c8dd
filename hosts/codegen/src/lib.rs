//! Generates code in a `build.rs` for protobuf services that `wave_user::rpc` serves. No protoc is needed.
//!
//! ```no_run
//! // build.rs
//! wave_codegen::compile(&["proto/greeter.proto"], &["proto"])?;
//! # Ok::<(), wave_codegen::CodegenError>(())
//! ```
//!
//! For a service `Greeter` in `package hello`, `$OUT_DIR/hello.rs` then has the messages (by prost), a trait `Greeter` with a
//! method per rpc, and `greeter_methods(service)`, whose result a server takes. The using crate depends on `prost` and
//! `wave-user`.
//!
//! | rpc | method of the trait |
//! | --- | --- |
//! | `(A) returns (B)` | `fn m(&self, call: &mut Call<'_>, request: A) -> Result<B, Status>` |
//! | `(A) returns (stream B)` | `fn m(&self, request: A, stream: &mut Stream<'_, '_, A, B>) -> Result<(), Status>` |
//! | `(stream A) returns (B)` | `fn m(&self, stream: &mut Stream<'_, '_, A, B>) -> Result<B, Status>` |
//! | `(stream A) returns (stream B)` | `fn m(&self, stream: &mut Stream<'_, '_, A, B>) -> Result<(), Status>` |
//!
//! A trait method without an implementation answers UNIMPLEMENTED.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_build::{Method, Service, ServiceGenerator};

/// Why no code could be generated.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum CodegenError {
    /// The `.proto` files do not compile.
    #[error(transparent)]
    Proto(#[from] protox::Error),
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    /// The program is not a `build.rs`: cargo has set no OUT_DIR.
    #[error("OUT_DIR is not set: this is to be called by a build.rs")]
    NoOutDir,
}

/// Compiles `.proto` files, which may import files below `includes`, into `OUT_DIR`: a file for each package, and
/// `descriptors.bin`, which the generated methods use for reflection. A second call in one `build.rs` replaces the descriptors
/// of the first, so name all files in one call.
///
/// # Errors
/// A `.proto` file is not found or does not compile, or an output file cannot be written.
pub fn compile(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<(), CodegenError> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or(CodegenError::NoOutDir)?);
    for folder in includes {
        println!("cargo::rerun-if-changed={}", folder.as_ref().display());
    }
    let set = protox::compile(protos, includes)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| CodegenError::File { path, error }
    };
    let path = out.join(DESCRIPTORS);
    std::fs::write(&path, set.encode_to_vec()).map_err(failed(&path))?;
    let mut config = prost_build::Config::new();
    config.out_dir(&out).service_generator(Box::new(Generator));
    config.type_attribute(".", "#[allow(missing_docs)]");
    config.compile_fds(set).map_err(failed(&out))
}

#[derive(Debug)]
struct Generator;

impl ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, buffer: &mut String) {
        // Writing to a string does not fail.
        let _ = write_service(&service, buffer);
    }
}

fn write_service(service: &Service, out: &mut String) -> std::fmt::Result {
    let Service { name, package, proto_name, .. } = service;
    let full =
        if package.is_empty() { proto_name.clone() } else { format!("{package}.{proto_name}") };
    service.comments.append_with_indent(0, out);
    writeln!(out, "#[allow(missing_docs, unused_variables)]")?;
    writeln!(out, "pub trait {name}: Send + Sync + 'static {{")?;
    for method in &service.methods {
        method.comments.append_with_indent(1, out);
        writeln!(
            out,
            "    fn {}(&self, {}) -> ::core::result::Result<{}, {RPC}::Status> {{",
            method.name,
            arguments(method),
            result(method)
        )?;
        writeln!(
            out,
            "        Err({RPC}::typed::unimplemented(\"/{full}/{}\"))",
            method.proto_name
        )?;
        writeln!(out, "    }}")?;
    }
    writeln!(out, "}}\n")?;
    writeln!(out, "/// The methods of `{full}`, served by `service`.")?;
    writeln!(out, "pub fn {}_methods(service: impl {name}) -> {RPC}::Methods {{", snake(name))?;
    writeln!(out, "    let service = ::std::sync::Arc::new(service);")?;
    writeln!(out, "    let methods = {RPC}::Methods::new();")?;
    for method in &service.methods {
        let adapter = match (method.client_streaming, method.server_streaming) {
            (false, false) => "unary",
            (false, true) => "server_streaming",
            (true, false) => "client_streaming",
            (true, true) => "streaming",
        };
        writeln!(out, "    let own = ::std::sync::Arc::clone(&service);")?;
        writeln!(out, "    let methods = {RPC}::typed::{adapter}(")?;
        writeln!(out, "        methods,\n        \"/{full}/{}\",", method.proto_name)?;
        let call = match (method.client_streaming, method.server_streaming) {
            (false, false) => format!("move |call, request| own.{}(call, request)", method.name),
            (false, true) => format!("move |request, stream| own.{}(request, stream)", method.name),
            (true, _) => format!("move |stream| own.{}(stream)", method.name),
        };
        writeln!(out, "        {call},\n    );")?;
    }
    // The generated file and the descriptors are in the same folder.
    writeln!(out, "    methods.descriptors(::core::include_bytes!(::core::concat!(")?;
    writeln!(out, "        ::core::env!(\"OUT_DIR\"),\n        \"/{DESCRIPTORS}\"\n    )))\n}}\n")
}

/// File name of the descriptors of all compiled files, for reflection.
const DESCRIPTORS: &str = "descriptors.bin";

/// Path of the runtime's module in generated code.
const RPC: &str = "::wave_user::rpc";

fn arguments(method: &Method) -> String {
    let Method { input_type, output_type, .. } = method;
    let stream = format!("stream: &mut {RPC}::typed::Stream<'_, '_, {input_type}, {output_type}>");
    match (method.client_streaming, method.server_streaming) {
        (false, false) => format!("call: &mut {RPC}::Call<'_>, request: {input_type}"),
        (false, true) => format!("request: {input_type}, {stream}"),
        (true, _) => stream,
    }
}

fn result(method: &Method) -> &str {
    if method.server_streaming { "()" } else { &method.output_type }
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
