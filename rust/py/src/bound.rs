use foldline_core::Error;
use foldline_core::bound::{self, Cut, Limits, Marker, Shortened};
use foldline_core::estimate::Encoding;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyString;

use crate::DETACH_BYTES;
use crate::error::Result;

/// Shares `budget` among results of the given sizes (semantics B1).
///
/// Sizes up to the equal share stay whole, the rest share equally, first ones get the remainder. None if a cut result
/// would get less than `minimum`.
#[pyfunction]
pub fn water_fill(sizes: Vec<u64>, budget: u64, minimum: u64) -> Option<Vec<u64>> {
    bound::water_fill(&sizes, budget, minimum)
}

/// Cuts a text to at most `max_bytes` of UTF-8 at a character, if near at a line (semantics B2).
///
/// Returns what is kept, with OMISSION between head and tail, and how many bytes of the original that holds.
#[pyfunction]
pub fn cut_text(py: Python<'_>, text: &str, max_bytes: usize, head_tail: bool) -> (String, usize) {
    if max_bytes < DETACH_BYTES {
        return pair(bound::cut_text(text, max_bytes, head_tail));
    }
    pair(py.detach(|| bound::cut_text(text, max_bytes, head_tail)))
}

/// `cut_text` of each text to its own size, in one call.
#[pyfunction]
pub fn cut_text_many(
    py: Python<'_>,
    texts: Vec<PyBackedStr>,
    max_bytes: Vec<usize>,
    head_tail: bool,
) -> Result<Vec<(String, usize)>> {
    same_length("max_bytes", max_bytes.len(), texts.len())?;
    let cut = |(text, &max): (&PyBackedStr, _)| pair(bound::cut_text(text, max, head_tail));
    Ok(py.detach(|| texts.iter().zip(&max_bytes).map(cut).collect()))
}

/// Cuts a text to at most `max_tokens` of an embedded encoding; otherwise as `cut_text`.
#[pyfunction]
pub fn cut_tokens(
    py: Python<'_>,
    text: &str,
    max_tokens: usize,
    encoding: &str,
    head_tail: bool,
) -> Result<(String, usize)> {
    let encoding = Encoding::from_name(encoding)?;
    Ok(pair(py.detach(|| bound::cut_tokens(text, max_tokens, encoding, head_tail))))
}

/// `cut_tokens` of each text to its own size, in one call.
#[pyfunction]
pub fn cut_tokens_many(
    py: Python<'_>,
    texts: Vec<PyBackedStr>,
    max_tokens: Vec<usize>,
    encoding: &str,
    head_tail: bool,
) -> Result<Vec<(String, usize)>> {
    let encoding = Encoding::from_name(encoding)?;
    same_length("max_tokens", max_tokens.len(), texts.len())?;
    let cut = |(text, &max): (&PyBackedStr, _)| pair(bound::cut_tokens(text, max, encoding, head_tail));
    Ok(py.detach(|| texts.iter().zip(&max_tokens).map(cut).collect()))
}

/// Tokens of each text; of one that is over its share of `budget`, and over `least`, only some number above both
/// (semantics B1).
///
/// `water_fill` gives the same shares as with the full counts.
#[pyfunction]
pub fn tokens_within(
    py: Python<'_>,
    texts: Vec<PyBackedStr>,
    budget: u64,
    least: u64,
    encoding: &str,
) -> Result<Vec<u64>> {
    let encoding = Encoding::from_name(encoding)?;
    Ok(py.detach(|| bound::tokens_within(texts.iter().map(|text| &text[..]), budget, least, encoding)))
}

/// A text, its limits as (bytes inside JSON, bytes, tokens), and the marker around the number of kept bytes.
type Shortening = (PyBackedStr, (Option<usize>, Option<usize>, Option<usize>), PyBackedStr, PyBackedStr);

/// Cuts each text to what its limits leave beside its marker, and puts the marker behind it (semantics B2).
///
/// Without an encoding tokens are weighted bytes. Returns of each text what to send, how many bytes of the original that
/// keeps, its tokens where they were limited, and its bytes inside JSON.
#[pyfunction]
pub fn shorten_many<'py>(
    py: Python<'py>,
    items: Vec<Shortening>,
    encoding: Option<&str>,
    head_tail: bool,
) -> Result<Vec<(Bound<'py, PyString>, usize, Option<usize>, usize)>> {
    let encoding = encoding.map(Encoding::from_name).transpose()?;
    let shortened: Vec<_> = py.detach(|| items.iter().map(|item| shorten(item, encoding, head_tail)).collect());
    // One buffer for all: what is kept can be megabytes, and fresh memory costs more than copying.
    let mut buffer = String::new();
    let answer = |short: Shortened<'_>| {
        buffer.clear();
        short.write(&mut buffer);
        (PyString::new(py, &buffer), short.kept_bytes, short.tokens, short.escaped)
    };
    Ok(shortened.into_iter().map(answer).collect())
}

fn shorten<'t>(item: &'t Shortening, encoding: Option<Encoding>, head_tail: bool) -> Shortened<'t> {
    let (text, (escaped, bytes, tokens), before, after) = item;
    let limits = Limits { escaped: *escaped, bytes: *bytes, tokens: *tokens };
    bound::shorten(text, limits, encoding, head_tail, Marker { before, after })
}

fn pair(cut: Cut) -> (String, usize) {
    (cut.kept, cut.kept_bytes)
}

fn same_length(what: &'static str, actual: usize, expected: usize) -> Result<()> {
    if actual == expected { Ok(()) } else { Err(Error::LengthMismatch { what, actual, expected }.into()) }
}
