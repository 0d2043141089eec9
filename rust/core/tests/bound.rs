//! Bounding (B1, B2): sharing a budget and cutting texts.

use foldline_core::bound::{Limits, Marker, OMISSION, Shortened, shorten, tokens_within, water_fill};
use foldline_core::estimate::Encoding;
use proptest::prelude::*;

#[test]
fn b1_small_results_stay_whole_and_the_rest_share_equally() {
    assert_eq!(water_fill(&[10, 1_000, 2_000, 3], 100, 5), Some(vec![10, 44, 43, 3]));
    assert_eq!(water_fill(&[10, 20], 30, 5), Some(vec![10, 20]));
    assert_eq!(water_fill(&[50, 50, 50], 100, 1), Some(vec![34, 33, 33]));
    assert_eq!(water_fill(&[], 0, 5), Some(vec![]));
}

#[test]
fn b8_no_share_under_the_minimum() {
    assert_eq!(water_fill(&[1_000, 1_000], 99, 50), None);
    assert_eq!(water_fill(&[1_000, 1_000], 100, 50), Some(vec![50, 50]));
    // A result that needs less than the minimum is no reason to refuse while it is whole.
    assert_eq!(water_fill(&[3, 1_000], 60, 50), Some(vec![3, 57]));
}

/// The obvious version: hand out units one round at a time.
fn unit_by_unit(sizes: &[u64], budget: u64) -> Vec<u64> {
    let mut shares = vec![0; sizes.len()];
    let mut left = budget;
    loop {
        let hungry: Vec<usize> = (0..sizes.len()).filter(|&at| shares[at] < sizes[at]).collect();
        if hungry.is_empty() || left == 0 {
            return shares;
        }
        for at in hungry {
            if left > 0 {
                shares[at] += 1;
                left -= 1;
            }
        }
    }
}

proptest! {
    #[test]
    fn b1_equals_handing_out_units(sizes in prop::collection::vec(0u64..60, 0..8), budget in 0u64..300) {
        prop_assert_eq!(water_fill(&sizes, budget, 0), Some(unit_by_unit(&sizes, budget)));
    }

    #[test]
    fn b1_never_exceeds_budget_or_size(sizes in prop::collection::vec(any::<u32>(), 0..20), budget in any::<u32>(), minimum in 0u64..1_000) {
        let sizes: Vec<u64> = sizes.into_iter().map(u64::from).collect();
        match water_fill(&sizes, u64::from(budget), minimum) {
            Some(shares) => {
                prop_assert!(shares.iter().sum::<u64>() <= u64::from(budget));
                for (share, size) in shares.iter().zip(&sizes) {
                    prop_assert!(share == size || (share < size && *share >= minimum));
                }
            }
            None => {
                let shares = smallest_share(&sizes, u64::from(budget));
                prop_assert!(shares < minimum);
            }
        }
    }
}

/// The smallest share that a cut result can get.
fn smallest_share(sizes: &[u64], budget: u64) -> u64 {
    water_fill(sizes, budget, 0)
        .expect("no minimum, no refusal")
        .iter()
        .zip(sizes)
        .filter(|(share, size)| share < size)
        .map(|(share, _)| *share)
        .min()
        .expect("a cut result")
}

const MARKER: Marker<'static> = Marker { before: "\n[kept ", after: "]" };

fn by_bytes(text: &str, bytes: usize, head_tail: bool) -> Shortened<'_> {
    // Room for the widest marker, so that `bytes` is what can be kept.
    let bytes = Some(bytes + text.len().to_string().len() + MARKER.before.len() + MARKER.after.len());
    shorten(text, Limits { bytes, ..Limits::default() }, None, head_tail, MARKER)
}

fn by_tokens(text: &str, tokens: usize, encoding: Encoding, head_tail: bool) -> Shortened<'_> {
    shorten(text, Limits { tokens: Some(tokens), ..Limits::default() }, Some(encoding), head_tail, MARKER)
}

fn text_of(short: &Shortened<'_>) -> String {
    let mut text = String::new();
    short.write(&mut text);
    text
}

#[test]
fn b2_cuts_at_a_line_when_one_is_near() {
    let text = "first line\nsecond line\nthird";
    assert_eq!(by_bytes(text, 24, false).kept[0], "first line\nsecond line\n");
    assert_eq!(by_bytes(text, 21, false).kept[0], "first line\nsecond lin");
    assert_eq!(text_of(&by_bytes(text, 100, false)), format!("{text}\n[kept 28]"));
    assert_eq!(text_of(&by_bytes(text, 0, false)), "[kept 0]");
}

#[test]
fn b2_never_splits_a_character() {
    let text = "日本語".repeat(10);
    for max in 3..text.len() {
        let short = by_bytes(&text, max, false);
        assert!(short.kept_bytes <= max && short.kept_bytes + 3 > max);
        assert!(text.starts_with(short.kept[0]));
    }
}

#[test]
fn b2_head_and_tail_stand_around_the_omission() {
    let text = "abcdefghij".repeat(20);
    let short = by_bytes(&text, 45, true);
    assert_eq!(short.kept, ["abcdefghij".repeat(2).as_str(), OMISSION, "abcdefghij".repeat(2).as_str()]);
    assert_eq!((short.kept_bytes, text_of(&short).ends_with("\n[kept 40]")), (40, true));
}

#[test]
fn b2_what_costs_no_tokens_is_no_reason_to_try_for_ever() {
    for text in [" ", " a b c", "- - - -", &" ".repeat(500)] {
        for tokens in 0..12 {
            for head_tail in [false, true] {
                let limits = Limits { tokens: Some(tokens), ..Limits::default() };
                let short = shorten(text, limits, None, head_tail, MARKER);
                assert!(short.kept_bytes == 0 || short.tokens <= Some(tokens));
            }
        }
    }
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z \\n]{0,300}", "\\PC{0,120}", "[一-龥\\n]{0,120}", "(=|-){0,300}", "[a-zA-Z0-9]{0,300}"]
}

proptest! {
    #[test]
    fn b2_keeps_a_head_and_a_tail_within_the_size(text in texts(), max in 0usize..400, head_tail: bool) {
        let short = by_bytes(&text, max, head_tail);
        let [head, omission, tail] = short.kept;
        prop_assert!(head.len() + omission.len() + tail.len() <= max);
        prop_assert!(text.starts_with(head) && text.ends_with(tail));
        prop_assert_eq!(short.kept_bytes, head.len() + tail.len());
        if text.len() <= max {
            prop_assert_eq!(head, text.as_str());
        } else if max > 40 {
            // A tenth for the line end, three bytes for the character, on each side.
            prop_assert!(short.kept_bytes + omission.len() + 8 >= max - max / 10, "{} of {}", short.kept_bytes, max);
        }
    }

    #[test]
    fn b1_token_cuts_count_at_most_what_was_asked(text in texts(), max in 0usize..60, head_tail: bool) {
        for encoding in Encoding::ALL {
            let short = by_tokens(&text, max, encoding, head_tail);
            let count = encoding.count(&text_of(&short));
            prop_assert_eq!(short.tokens, Some(count));
            prop_assert!(short.kept_bytes == 0 || count <= max, "{} > {}", count, max);
            let [head, _, tail] = short.kept;
            prop_assert!(text.starts_with(head) && text.ends_with(tail));
            prop_assert_eq!(short.kept_bytes, head.len() + tail.len());
        }
    }

    #[test]
    fn b1_sizes_within_a_budget_give_the_shares_of_whole_sizes(
        texts in prop::collection::vec(texts(), 0..6), budget in 0u64..300, least in 0u64..40
    ) {
        for encoding in Encoding::ALL {
            let whole: Vec<u64> = texts.iter().map(|text| encoding.count(text) as u64).collect();
            let found = tokens_within(texts.iter().map(String::as_str), budget, least, encoding);
            prop_assert_eq!(water_fill(&found, budget, 0), water_fill(&whole, budget, 0));
            for (found, whole) in found.into_iter().zip(whole) {
                prop_assert!(found == whole || (found < whole && found > least));
            }
        }
    }
}

#[test]
fn b1_a_token_cut_uses_its_budget() {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(200);
    for max in [50, 500, 1_500] {
        for head_tail in [false, true] {
            let short = by_tokens(&text, max, Encoding::O200k, head_tail);
            assert!(short.tokens.is_some_and(|tokens| tokens * 10 >= max * 9));
        }
    }
}

#[test]
fn b1_one_huge_piece_is_cut_inside() {
    let text = "x".repeat(300_000);
    for head_tail in [false, true] {
        let short = by_tokens(&text, 100, Encoding::O200k, head_tail);
        assert!(short.tokens <= Some(100));
        assert!(short.kept_bytes > 400);
    }
}
