//! The project's Markdown: a check of its links, and a site of its pages.

mod links;
mod markdown;
pub mod site;

pub use links::complaints;
