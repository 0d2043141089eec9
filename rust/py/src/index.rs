use foldline_core::index;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyString};

use crate::DETACH_BYTES;
use crate::error::Result;

/// Search terms of an ASCII text, in order, joined by spaces; of the last ones no more than `most`. None for other
/// texts (semantics M4).
#[pyfunction]
#[pyo3(signature = (text, most=None))]
pub fn ascii_terms(py: Python<'_>, text: &str, most: Option<usize>) -> Option<String> {
    let most = most.unwrap_or(usize::MAX);
    if text.len() < DETACH_BYTES {
        return index::ascii_terms(text, most);
    }
    py.detach(|| index::ascii_terms(text, most))
}

/// The words of a group of entries, given as the text and the context of each in turn.
#[pyclass(frozen, module = "foldline._core")]
pub struct Words(index::Words);

#[pymethods]
impl Words {
    #[new]
    fn new(py: Python<'_>, columns: Vec<PyBackedStr>) -> Self {
        Self(py.detach(|| index::Words::new(columns.iter().map(|column| &column[..]))))
    }

    /// The distinct words, in order of appearance.
    fn words(&self) -> &[String] {
        self.0.words()
    }

    /// Number of words of each entry.
    fn lengths(&self) -> Vec<usize> {
        self.0.lengths()
    }

    /// Postings by stem, for the stem of each distinct word.
    fn postings<'py>(
        &self,
        py: Python<'py>,
        stems: Vec<PyBackedStr>,
    ) -> Result<Vec<(Bound<'py, PyString>, Bound<'py, PyBytes>)>> {
        let stems: Vec<&str> = stems.iter().map(|stem| &stem[..]).collect();
        let found = py.detach(|| self.0.postings(&stems))?;
        Ok(found.iter().map(|(stem, bytes)| (PyString::new(py, stem), PyBytes::new(py, bytes))).collect())
    }
}
