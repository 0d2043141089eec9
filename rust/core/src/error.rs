//! The one error type of the core.

use thiserror::Error;

/// What a caller did that the core refuses. [`Error::reason`] is stable; the text may change.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The encoding's vocabulary is not embedded.
    #[error("unknown encoding {name:?}: embedded are o200k_base and cl100k_base")]
    UnknownEncoding {
        /// The name that was asked for.
        name: String,
    },
    /// A row is not the JSON of a row body.
    #[error("row {index} is no row body: {source}")]
    RowInvalid {
        /// Position of the row in the call.
        index: usize,
        /// What the JSON reader found.
        source: serde_json::Error,
    },
    /// Columns or lists that must be of one length are not.
    #[error("{what} has {actual} elements, expected {expected}")]
    LengthMismatch {
        /// The column or list.
        what: &'static str,
        /// Its length.
        actual: usize,
        /// The length of the first one.
        expected: usize,
    },
    /// A position or range lies outside the list, or ranges overlap or are out of order.
    #[error("range {from}..{to} is not inside 0..{len}, or not after the range before it")]
    RangeInvalid {
        /// Start of the range.
        from: usize,
        /// End of the range, exclusive.
        to: usize,
        /// Length of the list.
        len: usize,
    },
    /// A parent digest that is not 32 bytes.
    #[error("a digest has 32 bytes, got {actual}")]
    DigestLength {
        /// Bytes given.
        actual: usize,
    },
}

impl Error {
    /// The stable name of the reason, for callers that branch on it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownEncoding { .. } => "UNKNOWN_ENCODING",
            Self::RowInvalid { .. } => "ROW_INVALID",
            Self::LengthMismatch { .. } => "LENGTH_MISMATCH",
            Self::RangeInvalid { .. } => "RANGE_INVALID",
            Self::DigestLength { .. } => "DIGEST_LENGTH",
        }
    }
}

/// Result of the core's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
