use foldline_core::digest;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::error::Result;

/// SHA-256 over rows: `"foldline.rows.v1"`, then for each row its offset and its body's length as eight big-endian
/// bytes each, and the body.
#[pyfunction]
pub fn digest_rows<'py>(py: Python<'py>, offsets: Vec<u64>, bodies: Vec<PyBackedBytes>) -> Result<Bound<'py, PyBytes>> {
    let digest = py.detach(|| digest::digest_rows(&offsets, &bodies))?;
    Ok(PyBytes::new(py, &digest))
}

/// SHA-256 that chains a revision to its parent: `"foldline.chain.v1"`, the parent's 32 bytes, the kind as one byte,
/// then for each part its length as eight big-endian bytes and the part.
#[pyfunction]
pub fn chain<'py>(
    py: Python<'py>,
    parent: &[u8],
    kind: u8,
    payload: Vec<PyBackedBytes>,
) -> Result<Bound<'py, PyBytes>> {
    let small = payload.iter().map(|part| part.len()).sum::<usize>() < crate::DETACH_BYTES;
    let work = || digest::chain(parent, kind, &payload);
    let digest = if small { work()? } else { py.detach(work)? };
    Ok(PyBytes::new(py, &digest))
}
