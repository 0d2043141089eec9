//! Bounding of results for one request (semantics B1, B2): who gets how much, and where a text is cut.

mod cut;
mod water_fill;

pub use cut::{Cut, OMISSION, cut_text, cut_tokens};
pub use water_fill::water_fill;
