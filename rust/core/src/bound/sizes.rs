//! Token counts for sharing a budget, no further than the sharing needs (B1).

use super::scan::{Counter, Scan};
use super::water_fill;
use crate::estimate::Encoding;

/// Tokens of each text; of one that is over its share of `budget`, and over `least`, only some number above both.
///
/// So the shares that [`water_fill`] gives are those of the full counts, and the time is linear in what they keep.
#[must_use]
pub fn tokens_within<'t>(
    texts: impl IntoIterator<Item = &'t str>,
    budget: u64,
    least: u64,
    encoding: Encoding,
) -> Vec<u64> {
    let mut scans: Vec<Scan<'_>> = texts.into_iter().map(|text| Scan::new(text, Counter(Some(encoding)))).collect();
    loop {
        // The shares if every text that is still open is endless: they rise as texts turn out to need less.
        let sizes: Vec<u64> =
            scans.iter().map(|scan| if scan.is_done() { scan.cost() as u64 } else { u64::MAX }).collect();
        let shares = water_fill(&sizes, budget, 0).unwrap_or_default();
        let mut moved = false;
        for (scan, share) in scans.iter_mut().zip(shares) {
            let most = share.max(least) as usize;
            if !scan.is_done() && scan.cost() <= most {
                scan.advance(most);
                scan.forget();
                moved = true;
            }
        }
        if !moved {
            return scans.iter().map(|scan| scan.cost() as u64).collect();
        }
    }
}
