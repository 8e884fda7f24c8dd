//! The references in a Markdown file: links, headings, names in code spans.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

#[derive(Debug, PartialEq, Eq)]
pub struct Link {
    /// The destination, as written.
    pub destination: String,
    /// The byte range of the whole link, `[text](destination)`.
    pub range: Range<usize>,
}

/// The references of one file, in order.
#[derive(Debug, Default)]
pub struct References {
    pub links: Vec<Link>,
    /// The id of each heading, by GitHub's rule, which mdBook shares.
    pub headings: Vec<String>,
    /// The text of the first heading.
    pub title: Option<String>,
    /// Code spans, each with its byte offset.
    pub code: Vec<(String, usize)>,
}

pub fn references(text: &str) -> References {
    let mut found = References::default();
    let mut heading: Option<String> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                found.links.push(Link { destination: dest_url.into_string(), range });
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let text = heading.take().unwrap_or_default();
                let id = unique(slug(&text), &found.headings);
                found.headings.push(id);
                found.title.get_or_insert(text);
            }
            Event::Text(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::Code(code) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&code);
                }
                found.code.push((code.into_string(), range.start));
            }
            _ => {}
        }
    }
    found
}

/// The line of a byte offset, from 1.
pub fn line_of(text: &str, byte: usize) -> usize {
    text[..byte].matches('\n').count() + 1
}

fn slug(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    heading
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

/// Makes a heading's id unique: the second of the same text is `text-1`, the third `text-2`.
fn unique(slug: String, taken: &[String]) -> String {
    let numbered = (1..).map(|number| format!("{slug}-{number}"));
    std::iter::once(slug.clone()).chain(numbered).find(|id| !taken.contains(id)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_images_headings_and_code_are_found_outside_code_blocks() {
        let text = "# A `b`: c, d\n\nSee [x](y.md#z) and ![p](q.svg).\n\n```sh\n[no](no.md)\n```\n\n## E\n\n## E\n\n`[no](no.md)`\n";
        let found = references(text);
        let links: Vec<_> = found
            .links
            .iter()
            .map(|link| (&*link.destination, &text[link.range.clone()]))
            .collect();
        assert_eq!(links, [("y.md#z", "[x](y.md#z)"), ("q.svg", "![p](q.svg)")]);
        assert_eq!(found.headings, ["a-b-c-d", "e", "e-1"]);
        assert_eq!(found.title.as_deref(), Some("A b: c, d"));
        let code: Vec<_> =
            found.code.iter().map(|(code, at)| (&**code, line_of(text, *at))).collect();
        assert_eq!(code, [("b", 1), ("[no](no.md)", 13)]);
    }
}
