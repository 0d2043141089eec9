//! Estimation (semantics 4.5): exact token counts, a weighted heuristic, and the sizes of stored rows.

mod ascii;
mod cache;
mod classes;
mod merge;
mod rows;
mod split;
mod trie;
mod vocab;
mod weighted;

pub use rows::{
    BLOCK_OVERHEAD, IMAGE_TOKENS, ROW_OVERHEAD, ROW_TOKENS, RowSize, VIDEO_TOKENS_PER_SECOND, measure_rows,
};
pub(crate) use rows::{escaped_len, escaped_size};
pub use weighted::weighted_tokens;
pub(crate) use weighted::{WEIGHT, walk as walk_weights};

use crate::error::{Error, Result};
use vocab::Vocab;

/// A vocabulary whose merges are embedded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `cl100k_base`.
    Cl100k,
    /// `o200k_base`.
    O200k,
}

impl Encoding {
    /// All embedded encodings.
    pub const ALL: [Self; 2] = [Self::Cl100k, Self::O200k];

    /// Finds an encoding by its published name.
    ///
    /// # Errors
    /// [`Error::UnknownEncoding`] for every other name.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|encoding| encoding.name() == name)
            .ok_or_else(|| Error::UnknownEncoding { name: name.to_owned() })
    }

    /// The published name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cl100k => "cl100k_base",
            Self::O200k => "o200k_base",
        }
    }

    /// Builds the encoding's tables now instead of at the first count.
    pub fn warm(self) {
        self.vocab();
    }

    /// Whether the tables are built.
    #[must_use]
    pub fn is_warm(self) -> bool {
        vocab::is_built(self)
    }

    /// The bytes of every token, by rank; special tokens are not among them.
    #[must_use]
    pub fn ranks(self) -> Vec<Vec<u8>> {
        vocab::token_bytes(self)
    }

    /// Number of tokens of a text. Special-token text counts as the plain text it is. Linear in the text's length.
    #[must_use]
    pub fn count(self, text: &str) -> usize {
        let mut total = 0;
        self.walk(text, |_, tokens| total += tokens);
        total
    }

    /// Calls `each(end, tokens)` for every piece that the encoding's pattern cuts the text into.
    ///
    /// A piece depends on nothing before it, so the counts of a text's pieces from one on are those of the rest alone.
    #[inline]
    pub(crate) fn walk(self, text: &str, each: impl FnMut(usize, usize)) {
        let vocab = self.vocab();
        match self {
            Self::Cl100k => cache::walk(self, vocab, text.as_bytes(), split::cl100k, each),
            Self::O200k => cache::walk(self, vocab, text.as_bytes(), split::o200k, each),
        }
    }

    /// The token ranks of a text.
    #[must_use]
    pub fn encode(self, text: &str) -> Vec<u32> {
        let vocab = self.vocab();
        let mut tokens = Vec::new();
        let mut scratch = merge::Scratch::new();
        self.pieces(text.as_bytes(), |start, end| {
            tokens.extend_from_slice(merge::encode(vocab, &text.as_bytes()[start..end], &mut scratch));
        });
        tokens
    }

    fn vocab(self) -> &'static Vocab {
        vocab::get(self)
    }

    /// Calls `each(start, end)` for every piece that the encoding's pattern cuts the text into.
    fn pieces(self, text: &[u8], mut each: impl FnMut(usize, usize)) {
        let mut at = 0;
        while at < text.len() {
            let end = match self {
                Self::Cl100k => split::cl100k(text, at),
                Self::O200k => split::o200k(text, at),
            };
            each(at, end);
            at = end;
        }
    }
}
