//! The module `foldline._core`: converts, detaches from the interpreter, maps errors; all else is `foldline-core`.

mod bound;
mod digest;
mod error;
mod estimate;
mod index;
mod ledger;

use pyo3::prelude::*;

/// Below this many bytes a call stays attached: it ends within a fraction of a millisecond, and attaching again could
/// wait for longer than that.
const DETACH_BYTES: usize = 8 * 1024;

/// The computing core of Foldline: token counts, bounding, the index of memory, transcript sums, digests.
#[pymodule]
mod _core {
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    #[pymodule_export]
    use super::bound::{shorten_many, tokens_within, water_fill};
    #[pymodule_export]
    use super::digest::{chain, digest_rows};
    #[pymodule_export]
    use super::error::CoreError;
    #[pymodule_export]
    use super::estimate::{count_tokens, encodings, measure_rows, ranks, warm, weighted_tokens};
    #[pymodule_export]
    use super::index::{Words, ascii_terms};
    #[pymodule_export]
    use super::ledger::Ledger;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    const OMISSION: &str = foldline_core::bound::OMISSION;
    #[pymodule_export]
    const ROW_TOKENS: u64 = foldline_core::estimate::ROW_TOKENS;
    #[pymodule_export]
    const IMAGE_TOKENS: u64 = foldline_core::estimate::IMAGE_TOKENS;
    #[pymodule_export]
    const VIDEO_TOKENS_PER_SECOND: u64 = foldline_core::estimate::VIDEO_TOKENS_PER_SECOND;
    #[pymodule_export]
    const ROW_OVERHEAD: u64 = foldline_core::estimate::ROW_OVERHEAD;
    #[pymodule_export]
    const BLOCK_OVERHEAD: u64 = foldline_core::estimate::BLOCK_OVERHEAD;

    /// How this library was built: version, profile, target.
    #[pyfunction]
    fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let info = PyDict::new(py);
        info.set_item("version", env!("CARGO_PKG_VERSION"))?;
        info.set_item("profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
        info.set_item("target", format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS))?;
        Ok(info)
    }
}
