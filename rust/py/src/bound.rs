use foldline_core::bound::{self, Limits, Marker, Shortened};
use foldline_core::estimate::Encoding;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyString;

use crate::error::Result;

/// Shares `budget` among results of the given sizes (semantics B1).
///
/// Sizes up to the equal share stay whole, the rest share equally, first ones get the remainder. None if a cut result
/// would get less than `minimum`.
#[pyfunction]
pub fn water_fill(sizes: Vec<u64>, budget: u64, minimum: u64) -> Option<Vec<u64>> {
    bound::water_fill(&sizes, budget, minimum)
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

/// What to send, how many bytes of the original it keeps, its tokens where they were limited, its bytes inside JSON.
type Answer<'py> = (Bound<'py, PyString>, usize, Option<usize>, usize);

/// Cuts each text to what its limits leave beside its marker, and puts the marker behind it (semantics B2).
///
/// Without an encoding tokens are weighted bytes.
#[pyfunction]
pub fn shorten_many<'py>(
    py: Python<'py>,
    items: Vec<Shortening>,
    encoding: Option<&str>,
    head_tail: bool,
) -> Result<Vec<Answer<'py>>> {
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
