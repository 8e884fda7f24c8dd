//! Results as CSV.

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
    fn cells_with_commas_are_quoted() {
        let bytes = csv(["name", "n"], [["a, b", "1"], ["c", "2"]]);
        assert_eq!(String::from_utf8(bytes).unwrap(), "name,n\n\"a, b\",1\nc,2\n");
    }
}
