//! Sharing a budget (B1).

/// Shares `budget` among results of the given sizes.
///
/// Results up to the equal share stay whole; the rest share what is left equally, and what the division leaves goes in
/// single units to the first of them in list order. The sum never exceeds the budget. `None` if a result that must be
/// cut would get less than `minimum`.
#[must_use]
pub fn water_fill(sizes: &[u64], budget: u64, minimum: u64) -> Option<Vec<u64>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_unstable_by_key(|&at| sizes[at]);
    let mut shares = sizes.to_vec();
    let mut left = budget;
    for (taken, &at) in order.iter().enumerate() {
        let sharers = (sizes.len() - taken) as u64;
        let share = left / sharers;
        if sizes[at] <= share {
            left -= sizes[at];
            continue;
        }
        if share < minimum {
            return None;
        }
        let mut cut = order[taken..].to_vec();
        cut.sort_unstable();
        let extra = (left % sharers) as usize;
        for (place, at) in cut.into_iter().enumerate() {
            shares[at] = share + u64::from(place < extra);
        }
        break;
    }
    Some(shares)
}
