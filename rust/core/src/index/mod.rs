//! Building the lexical index of memory (semantics M4): the terms of texts, and the postings of words.

mod postings;
mod terms;

pub use postings::{POSTING_BYTES, Words};
pub use terms::ascii_terms;
