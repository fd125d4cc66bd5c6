//! Columns of equal width.

/// Lines of `rows` with each column as wide as its widest cell, two spaces between columns and none
/// at a line's end. Columns whose index is in `right` are aligned to the right.
#[must_use]
pub fn table(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).enumerate();
            let line: Vec<String> = cells
                .filter(|(_, (_, width))| **width > 0)
                .map(|(column, (cell, &width))| {
                    if right.contains(&column) {
                        format!("{cell:>width$}")
                    } else {
                        format!("{cell:<width$}")
                    }
                })
                .collect();
            line.join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_columns_vanish() {
        let rows =
            [["a", "", "10", ""], ["bcd", "", "9", "x"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows, &[2]), ["a    10", "bcd   9  x"]);
    }
}
