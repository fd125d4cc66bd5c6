//! The last lines of a text.

use std::collections::VecDeque;

/// Keeps the last lines that are pushed.
#[derive(Clone, Debug)]
pub struct Tail {
    lines: VecDeque<String>,
    most: usize,
}

impl Tail {
    /// Keeps `most` lines.
    pub fn new(most: usize) -> Self {
        Self {
            lines: VecDeque::new(),
            most,
        }
    }

    pub fn push(&mut self, line: String) {
        if self.lines.len() == self.most {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_stay() {
        let mut tail = Tail::new(2);
        for line in ["a", "b", "c"] {
            tail.push(line.to_owned());
        }
        assert_eq!(tail.into_lines(), ["b", "c"]);
    }
}
