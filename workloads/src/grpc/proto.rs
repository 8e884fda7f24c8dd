//! The messages and services of `proto/`, as prost and tonic make them.

/// A store of keys and values: `kv.proto`.
pub mod kv {
    tonic::include_proto!("wave.kv.v1");
}

/// What a bench calls: `echo.proto`.
pub mod echo {
    tonic::include_proto!("wave.echo.v1");
}

/// Both files' descriptors (an encoded `FileDescriptorSet`), as a server reflects them.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
