//! Line breaks: lists and objects that fit a line stand on one.

/// Most characters of a line with a whole list or object.
const WIDTH: usize = 130;

/// Joins the lines of each list and object that then fits a line. `pretty` has one element a line, as serde_json writes it.
pub(crate) fn fold(pretty: &str) -> String {
    let mut lines: Vec<String> = vec![];
    let mut open: Vec<usize> = vec![];
    for line in pretty.lines() {
        lines.push(line.to_owned());
        // A text ends with a quote, and a line within one is no line of its own: line breaks are escaped.
        if line.ends_with(['{', '[']) {
            open.push(lines.len() - 1);
        } else if line.trim_start().starts_with(['}', ']'])
            && let Some(first) = open.pop()
        {
            let joined = join(&lines[first..]);
            if joined.len() <= WIDTH {
                lines.truncate(first);
                lines.push(joined);
            }
        }
    }
    lines.join("\n")
}

fn join(lines: &[String]) -> String {
    let mut joined = lines[0].clone();
    for line in &lines[1..] {
        if joined.ends_with(',') {
            joined.push(' ');
        }
        joined.push_str(line.trim_start());
    }
    joined
}
