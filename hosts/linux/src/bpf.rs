//! Loads BPF programs, and explains why the kernel refused them.

use std::sync::Mutex;

use libbpf_rs::PrintLevel;

use crate::lock;

/// Why programs were not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// This process may not load BPF programs.
    NotPermitted,
    /// Another reason, in the words of the kernel and libbpf.
    Other(String),
}

/// Loads programs. Output of libbpf is not printed, but returned in the error if they are refused.
pub(crate) fn load<T>(load: impl FnOnce() -> libbpf_rs::Result<T>) -> Result<T, Refusal> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = lock(&ONE);
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, keep_words)));
    let loaded = load();
    libbpf_rs::set_print(before);
    let words = std::mem::take(&mut *lock(&WORDS));
    loaded.map_err(|error| match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => Refusal::NotPermitted,
        _ => Refusal::Other(format!("{error}\n{words}").trim_end().to_owned()),
    })
}

/// The end of libbpf's log while programs were loaded.
static WORDS: Mutex<String> = Mutex::new(String::new());
/// Most bytes of the log that are kept.
const WORDS_MAX: usize = 4_000;

fn keep_words(_: PrintLevel, text: String) {
    let mut words = lock(&WORDS);
    words.push_str(&text);
    while words.len() > WORDS_MAX {
        words.remove(0);
    }
}
