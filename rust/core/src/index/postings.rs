//! The index of a group of entries by stem.

use std::collections::HashMap;

use crate::error::{Error, Result};

/// Bytes of a posting: the entry's number (four, little-endian), how often the stem stands in its own text and in its
/// context (one each), and its length in words (two).
pub const POSTING_BYTES: usize = 8;

/// The words of entries, each entry with a text of its own and a context.
#[derive(Debug, Default)]
pub struct Words {
    /// Distinct words, in order of appearance.
    words: Vec<String>,
    /// The entries' words by number: own ones and those of the context in turn, `ends` where each column ends.
    numbers: Vec<u32>,
    ends: Vec<usize>,
}

impl Words {
    /// Reads columns of words between white space: the text and the context of each entry in turn.
    pub fn new<'t>(columns: impl IntoIterator<Item = &'t str>) -> Self {
        let mut found = Self::default();
        let mut known: HashMap<&str, u32> = HashMap::new();
        for column in columns {
            for word in column.split(is_space).filter(|word| !word.is_empty()) {
                let number = *known.entry(word).or_insert_with(|| {
                    found.words.push(word.to_owned());
                    (found.words.len() - 1) as u32
                });
                found.numbers.push(number);
            }
            found.ends.push(found.numbers.len());
        }
        found
    }

    /// The distinct words.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Number of words of each entry.
    #[must_use]
    pub fn lengths(&self) -> Vec<usize> {
        let mut start = 0;
        self.ends
            .chunks(2)
            .map(|ends| ends[ends.len() - 1] - std::mem::replace(&mut start, ends[ends.len() - 1]))
            .collect()
    }

    /// The postings of each stem, by stem. A count or length that has no room counts as the most there is room for.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] unless there is a stem for each distinct word.
    pub fn postings<'t>(&self, stems: &[&'t str]) -> Result<Vec<(&'t str, Vec<u8>)>> {
        if stems.len() != self.words.len() {
            return Err(Error::LengthMismatch { what: "stems", actual: stems.len(), expected: self.words.len() });
        }
        let mut order: Vec<&str> = stems.to_vec();
        order.sort_unstable();
        order.dedup();
        let place: HashMap<&str, usize> = order.iter().enumerate().map(|(place, &stem)| (stem, place)).collect();
        let places: Vec<usize> = stems.iter().map(|stem| place[stem]).collect();
        let mut found: Vec<Vec<u8>> = vec![Vec::new(); order.len()];
        let lengths = self.lengths();
        let mut start = 0;
        for (column, &end) in self.ends.iter().enumerate() {
            let entry = column / 2;
            let head = (entry as u32).to_le_bytes();
            for &number in &self.numbers[start..end] {
                let postings = &mut found[places[number as usize]];
                // A stem's postings grow by entry: only the last can be this entry's.
                let last = postings.len().wrapping_sub(POSTING_BYTES);
                if postings.len() < POSTING_BYTES || postings[last..last + 4] != head {
                    let length = lengths[entry].min(usize::from(u16::MAX)) as u16;
                    postings.extend(head);
                    postings.extend([0, 0]);
                    postings.extend(length.to_le_bytes());
                }
                let count = postings.len() - POSTING_BYTES + 4 + column % 2;
                postings[count] = postings[count].saturating_add(1);
            }
            start = end;
        }
        Ok(order.into_iter().zip(found).collect())
    }
}

/// White space as Python's `str.split` takes it.
fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\u{1C}'..='\u{1F}')
}
