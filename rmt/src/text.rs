//! Text that is put together at compile time.

use core::fmt;

/// Limit of a text, in bytes. What does not fit is cut off.
const BYTES_MAX: usize = 640;

/// A text of limited length.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    bytes: [u8; BYTES_MAX],
    len: usize,
}

impl Text {
    pub(crate) const EMPTY: Text = Text { bytes: [0; BYTES_MAX], len: 0 };

    /// The text with another one after it.
    pub(crate) const fn and(mut self, text: &str) -> Text {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            self = self.byte(bytes[at]);
            at += 1;
        }
        self
    }

    /// The text with a byte of ASCII after it.
    pub(crate) const fn byte(mut self, byte: u8) -> Text {
        if self.len < BYTES_MAX {
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        self
    }

    /// The text with a number after it.
    pub(crate) const fn number(mut self, number: i64) -> Text {
        if number < 0 {
            self = self.and("-");
        }
        let mut rest = number.unsigned_abs();
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        while at < digits.len() {
            self = self.byte(digits[at]);
            at += 1;
        }
        self
    }

    /// The text, or as much as is whole characters.
    pub(crate) const fn as_str(&self) -> &str {
        let (text, _) = self.bytes.split_at(self.len);
        match core::str::from_utf8(text) {
            Ok(text) => text,
            Err(_) => "a message that was cut off within a character",
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
