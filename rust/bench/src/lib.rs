//! The peers of the token counter as a Python module, so that all are called the same way in one process.
//!
//! Not part of the product: `bench/g1_*.py` loads the library from this crate's target folder.

use pyo3::prelude::*;

/// Counters of other crates.
#[pymodule]
mod foldline_peers {
    use std::sync::OnceLock;

    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;
    use toktok::Tokenizer;

    /// Tokens of a text by `toktok-rs`.
    #[pyfunction]
    fn count_toktok(py: Python<'_>, text: &str, encoding: &str) -> PyResult<usize> {
        static CL100K: OnceLock<Tokenizer> = OnceLock::new();
        static O200K: OnceLock<Tokenizer> = OnceLock::new();
        let cell = match encoding {
            "cl100k_base" => &CL100K,
            "o200k_base" => &O200K,
            _ => return Err(PyValueError::new_err(format!("unknown encoding {encoding}"))),
        };
        let built = || Tokenizer::builtin(encoding).expect("an embedded encoding");
        Ok(py.detach(|| cell.get_or_init(built).count(text.as_bytes())))
    }

    /// Tokens of a text by `bpe-openai`.
    #[pyfunction]
    fn count_bpe_openai(py: Python<'_>, text: &str, encoding: &str) -> PyResult<usize> {
        let tokenizer = match encoding {
            "cl100k_base" => bpe_openai::cl100k_base,
            "o200k_base" => bpe_openai::o200k_base,
            _ => return Err(PyValueError::new_err(format!("unknown encoding {encoding}"))),
        };
        Ok(py.detach(|| tokenizer().count(text)))
    }
}
