//! Columns of equal width.

/// Returns lines of `rows` with each column as wide as its widest cell, two spaces between columns and none at a line's
/// end. Columns whose index is in `right` are aligned to the right.
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

/// Characters that a column keeps when it gives way.
const LEAST: usize = 8;

/// As [`table`], with no line longer than `width` characters: the longest cells of the columns in `flexible`
/// end in `…`, and so does the line where that isn't enough.
#[must_use]
pub fn fitted(
    mut rows: Vec<Vec<String>>,
    right: &[usize],
    flexible: &[usize],
    width: usize,
) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let longest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns).map(longest).collect();
    let shown = widths.iter().filter(|width| **width > 0).count();
    let gaps = 2 * shown.saturating_sub(1);
    let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
    while over > 0 {
        let columns = widths.iter_mut().enumerate();
        let flexible =
            columns.filter(|(column, width)| flexible.contains(column) && **width > LEAST);
        let Some((_, widest)) = flexible.max_by_key(|(_, width)| **width) else {
            break;
        };
        *widest -= 1;
        over -= 1;
    }
    for row in &mut rows {
        for (cell, width) in row.iter_mut().zip(&widths) {
            cut(cell, *width);
        }
    }
    let mut lines = table(&rows, right);
    for line in &mut lines {
        cut(line, width);
    }
    lines
}

/// Leaves at most `width` characters, the last of which tells that there were more.
fn cut(text: &mut String, width: usize) {
    if text.chars().count() > width {
        *text = text.chars().take(width.saturating_sub(1)).collect();
        text.push('…');
    }
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

    #[test]
    fn the_longest_columns_give_way_first_and_headings_with_them() {
        let rows = [
            ["ID", "PLACE", "WHY"],
            ["1", "a_long_place", "a very long reason"],
        ];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec()).to_vec();
        assert_eq!(
            fitted(rows.clone(), &[0], &[1, 2], 26),
            ["ID  PLACE       WHY", " 1  a_long_pl…  a very lo…"]
        );
        assert_eq!(
            fitted(rows, &[0], &[1, 2], 15),
            ["ID  PLACE     …", " 1  a_long_…  …"]
        );
    }
}
