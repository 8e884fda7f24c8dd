//! Tables of results: for a terminal, for a page, and as CSV.

use std::fmt;

use comfy_table::CellAlignment;
use maud::{Markup, html};

/// Rows of cells under a head. The first columns hold text, the others numbers, which are aligned to the right.
#[derive(Clone, Debug)]
pub struct Table {
    head: Vec<String>,
    text_columns: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows, whose first `text_columns` columns hold text. On a page, a line break in a column's name becomes a
    /// space, and a hyphen before it is removed.
    pub fn new(text_columns: usize, head: impl IntoIterator<Item = impl Into<String>>) -> Table {
        Table { head: head.into_iter().map(Into::into).collect(), text_columns, rows: Vec::new() }
    }

    /// Appends a row.
    pub fn push(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table with these rows after its own.
    #[must_use]
    pub fn with(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
        self.rows.extend(rows);
        self
    }

    /// Keeps the first `most` rows; returns the number of rows removed.
    pub(crate) fn truncate(&mut self, most: usize) -> usize {
        let more = self.rows.len().saturating_sub(most);
        self.rows.truncate(most);
        more
    }

    /// Names of the columns.
    pub fn head(&self) -> &[String] {
        &self.head
    }

    /// The cells of each row.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// As HTML.
    pub fn html(&self) -> Markup {
        let name = |name: &str| name.replace("-\n", "").replace('\n', " ");
        html! {
            div.scroll { table {
                thead { tr { @for (at, cell) in self.head.iter().enumerate() {
                    th.n[at >= self.text_columns] { (name(cell)) }
                } } }
                tbody { @for row in &self.rows { tr { @for (at, cell) in row.iter().enumerate() {
                    td.n[at >= self.text_columns] { (cell) }
                } } } }
            } }
        }
    }
}

/// As text.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head: Vec<&str> = self.head.iter().map(String::as_str).collect();
        let mut table = wave_lab::table(&head);
        for column in table.column_iter_mut().skip(self.text_columns) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.add_rows(&self.rows);
        table.fmt(f)
    }
}

/// CSV with a header row.
///
/// # Panics
///
/// If a row has another number of cells than the head.
pub fn csv<Row>(
    head: impl IntoIterator<Item = impl AsRef<[u8]>>,
    rows: impl IntoIterator<Item = Row>,
) -> Vec<u8>
where
    Row: IntoIterator<Item: AsRef<[u8]>>,
{
    let mut writer = csv::Writer::from_writer(Vec::new());
    let written = writer
        .write_record(head)
        .and_then(|()| rows.into_iter().try_for_each(|row| writer.write_record(row)));
    written.expect("every row has as many cells as the head");
    writer.into_inner().expect("a vector has room for all bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_shown_on_a_terminal_and_on_a_page() {
        let mut table = Table::new(1, ["variant", "p99\nus"]);
        table.push(["a <b>", "12"]);
        let text = table.with([vec!["c".to_owned(), "7".to_owned()]]);
        let page = text.html().into_string();
        assert!(page.contains("<th class=\"n\">p99 us</th>"), "{page}");
        assert!(page.contains("a &lt;b&gt;</td><td class=\"n\">12</td>"), "{page}");
        let lines: Vec<String> = text.to_string().lines().map(str::to_owned).collect();
        assert!(lines[1].contains(" us") && lines[4].ends_with("   7 "), "{lines:?}");
    }

    #[test]
    fn cells_with_commas_are_quoted() {
        let bytes = csv(["name", "n"], [["a, b", "1"], ["c", "2"]]);
        assert_eq!(String::from_utf8(bytes).unwrap(), "name,n\n\"a, b\",1\nc,2\n");
    }
}
