//! Bounding of results for one request (semantics B1, B2): who gets how much, and where a text is cut.

mod scan;
mod shorten;
mod sizes;
mod water_fill;

pub use shorten::{Limits, Marker, OMISSION, Shortened, shorten};
pub use sizes::tokens_within;
pub use water_fill::water_fill;
