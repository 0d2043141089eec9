use foldline_core::estimate::{self, Encoding};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::DETACH_BYTES;
use crate::error::Result;

/// Names of the embedded encodings.
#[pyfunction]
pub fn encodings() -> Vec<&'static str> {
    Encoding::ALL.iter().map(|encoding| encoding.name()).collect()
}

/// Builds an encoding's tables now instead of at its first count, without holding the interpreter.
#[pyfunction]
pub fn warm(py: Python<'_>, encoding: &str) -> Result<()> {
    let encoding = Encoding::from_name(encoding)?;
    py.detach(|| encoding.warm());
    Ok(())
}

/// The bytes of every token of an encoding, by rank, special tokens excluded.
#[pyfunction]
pub fn ranks<'py>(py: Python<'py>, encoding: &str) -> Result<Vec<Bound<'py, PyBytes>>> {
    let encoding = Encoding::from_name(encoding)?;
    let tokens = py.detach(|| encoding.ranks());
    Ok(tokens.iter().map(|token| PyBytes::new(py, token)).collect())
}

/// Number of tokens of a text in an embedded encoding; special-token text counts as plain text.
#[pyfunction]
pub fn count_tokens(py: Python<'_>, text: &str, encoding: &str) -> Result<usize> {
    let encoding = Encoding::from_name(encoding)?;
    if text.len() < DETACH_BYTES && encoding.is_warm() {
        return Ok(encoding.count(text));
    }
    Ok(py.detach(|| encoding.count(text)))
}

/// Estimated tokens of a text whose vocabulary is not embedded, by weighted bytes.
#[pyfunction]
pub fn weighted_tokens(py: Python<'_>, text: &str) -> usize {
    if text.len() < DETACH_BYTES {
        return estimate::weighted_tokens(text);
    }
    py.detach(|| estimate::weighted_tokens(text))
}

/// Estimated tokens and request-body bytes of rows, each the canonical JSON of a row body (semantics 4.5).
///
/// Without an encoding texts are counted by weighted bytes.
#[pyfunction]
pub fn measure_rows(py: Python<'_>, rows: Vec<PyBackedBytes>, encoding: Option<&str>) -> Result<Vec<(u64, u64)>> {
    let encoding = encoding.map(Encoding::from_name).transpose()?;
    let work = || estimate::measure_rows(rows.iter().map(|row| &row[..]), encoding);
    let small = rows.iter().map(|row| row.len()).sum::<usize>() < DETACH_BYTES;
    let sizes = if small && encoding.is_none_or(Encoding::is_warm) { work()? } else { py.detach(work)? };
    Ok(sizes.into_iter().map(|size| (size.tokens, size.bytes)).collect())
}
