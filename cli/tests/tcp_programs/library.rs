//! The preloaded library.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Builds the library beside `wave`. Cargo does not build it for a test of another package.
pub fn library() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_wave")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--package", "wave-preload", "--target-dir"]);
        cargo
            .arg(profile.parent().unwrap())
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the library is not built");
    });
}
