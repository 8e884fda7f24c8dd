//! Views of headers.
