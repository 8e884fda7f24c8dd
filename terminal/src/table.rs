//! Tables, drawn as text.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, TableComponent, Width, presets,
};

/// Maximum width of a fitted table, in columns of the terminal.
pub const WIDTH: u16 = 100;

/// Width up to which the text of a fitted table's first column is not broken, padding included.
const FIRST_WIDTH_MAX: u16 = 34;

/// Number of spaces beside the content of a cell.
const PADDING: u16 = 2;

/// Number of spaces between two cells.
const SEPARATOR: u16 = 1;

/// Rows of cells under a head. Columns hold text or numbers; numbers are aligned to the right.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// Classes of rows on a page.
    classes: BTreeMap<usize, &'static str>,
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    is_number: bool,
}

impl Table {
    /// A table without rows, whose first `text_columns` columns hold text, and the others numbers. A column's name may have line
    /// breaks.
    pub fn new(text_columns: usize, head: impl IntoIterator<Item = impl Into<String>>) -> Table {
        let column = |(at, name): (usize, _)| Column {
            name: Into::into(name),
            is_number: at >= text_columns,
        };
        let columns = head.into_iter().map(Into::<String>::into).enumerate().map(column).collect();
        Table { columns, rows: Vec::new(), classes: BTreeMap::new() }
    }

    /// The table, with these columns for text.
    #[must_use]
    pub fn with_text_in(mut self, names: &[&str]) -> Table {
        for column in &mut self.columns {
            column.is_number &= !names.contains(&column.name.as_str());
        }
        self
    }

    /// Appends a row. Missing cells are empty.
    ///
    /// # Panics
    /// If there are more cells than columns.
    pub fn push(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert!(cells.len() <= self.columns.len(), "{cells:?} in {:?}", self.columns);
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Appends a row with a CSS class for the page.
    pub fn push_as(&mut self, class: &'static str, cells: Vec<String>) {
        self.classes.insert(self.rows.len(), class);
        self.push(cells);
    }

    /// The table with these rows after its own.
    #[must_use]
    pub fn with(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
        rows.into_iter().for_each(|row| self.push(row));
        self
    }

    /// The table without these columns; of columns that share a name, without the last.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Table {
        for name in names {
            if let Some(at) = self.columns.iter().rposition(|column| column.name == *name) {
                self.columns.remove(at);
                self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
            }
        }
        self
    }

    /// Keeps the first `most` rows; returns the number of rows removed.
    pub fn truncate(&mut self, most: usize) -> usize {
        let more = self.rows.len().saturating_sub(most);
        self.rows.truncate(most);
        self.classes.split_off(&most);
        more
    }

    /// The cells of each row.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// For each column, its name and whether it holds numbers.
    pub fn columns(&self) -> impl Iterator<Item = (&str, bool)> {
        self.columns.iter().map(|column| (column.name.as_str(), column.is_number))
    }

    /// The class of the row at this index, for a page.
    pub fn class(&self, row: usize) -> Option<&'static str> {
        self.classes.get(&row).copied()
    }

    /// As text of at most [`WIDTH`] columns. Words and numbers are broken only if there is no other way. The first column breaks
    /// between words if the others leave no room.
    pub fn fitted(&self) -> String {
        let mut table = self.drawn();
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        let columns = |text: &str| text.chars().count() as u16 + PADDING;
        let longest_word = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            let cells = cells.chain([&self.columns[at].name]);
            cells.flat_map(|cell| cell.split_whitespace()).map(columns).max().unwrap_or(0)
        };
        let mut widths: Vec<u16> = (0..self.columns.len()).map(longest_word).collect();
        if let [first, others @ ..] = widths.as_mut_slice() {
            let left = WIDTH.saturating_sub(others.iter().map(|width| width + SEPARATOR).sum());
            let whole = self.rows.iter().filter_map(|row| row.first()).map(|cell| columns(cell));
            let whole = whole.max().unwrap_or(0).min(FIRST_WIDTH_MAX);
            *first = whole.min(left).max(*first);
        }
        for (column, width) in table.column_iter_mut().zip(widths) {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
        }
        table.to_string()
    }

    /// As text for programs that read lines: without a rule below the head, and without spaces at the ends of lines.
    pub fn plain(&self) -> String {
        let mut table = self.drawn();
        table.load_preset(presets::NOTHING);
        table.trim_fmt()
    }

    fn drawn(&self) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_style(TableComponent::HeaderLines, '─')
            .set_style(TableComponent::MiddleHeaderIntersections, '─')
            .set_header(self.columns().map(|(name, _)| name))
            .add_rows(&self.rows);
        for (drawn, column) in table.column_iter_mut().zip(&self.columns) {
            if column.is_number {
                drawn.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// As text.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.drawn().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let mut table = Table::new(1, ["variant", "p99\nus"]);
        table.push(["a", "12"]);
        let text = table.with([vec!["c".to_owned(), "7".to_owned()]]).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains(" us") && lines[4].ends_with("   7 "), "{text}");
    }

    #[test]
    fn without_removes_a_column_and_its_cells() {
        let table =
            Table::new(1, ["a", "b", "c"]).with([["1", "2", "3"].map(str::to_owned).into()]);
        assert_eq!(table.without(&["b"]).with_text_in(&["c"]).plain(), " a  c\n 1  3");
    }
}
