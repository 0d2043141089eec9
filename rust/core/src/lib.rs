//! The computing core of Foldline: counting tokens, bounding texts, keeping a transcript's sums, digesting rows.
//!
//! No Python here: the binding is the crate `foldline-py`.

pub mod bound;
pub mod digest;
pub mod error;
pub mod estimate;
pub mod index;
pub mod ledger;

pub use error::{Error, Result};
