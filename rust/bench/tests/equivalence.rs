//! The counter against byte-pair encoding as it is defined, and against another exact counter.

use std::collections::HashMap;
use std::sync::OnceLock;

use foldline_core::estimate::Encoding;
use proptest::prelude::*;

/// The definition: merge the pair of the lowest rank, the first of equals, until none is left. Quadratic.
fn by_definition(ranks: &HashMap<Vec<u8>, usize>, piece: &str) -> usize {
    let mut parts: Vec<Vec<u8>> = piece.bytes().map(|byte| vec![byte]).collect();
    loop {
        let lowest =
            parts.windows(2).enumerate().filter_map(|(at, pair)| Some((*ranks.get(&pair.concat())?, at))).min();
        let Some((_, at)) = lowest else { return parts.len() };
        let right = parts.remove(at + 1);
        parts[at].extend(right);
    }
}

fn ranks(encoding: Encoding) -> &'static HashMap<Vec<u8>, usize> {
    static RANKS: [OnceLock<HashMap<Vec<u8>, usize>>; 2] = [const { OnceLock::new() }; 2];
    let invert = || encoding.ranks().into_iter().enumerate().map(|(rank, token)| (token, rank)).collect();
    RANKS[encoding as usize].get_or_init(invert)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Texts that both patterns take as one piece, so that only merging is compared.
    #[test]
    fn one_piece_is_merged_by_definition(piece in prop_oneof!["[a-z]{1,60}", "[ab]{1,60}", "[一-龥]{1,25}", "[α-ω]{1,30}", "[=*#-]{1,60}"]) {
        for encoding in Encoding::ALL {
            prop_assert_eq!(encoding.count(&piece), by_definition(ranks(encoding), &piece));
        }
    }

    #[test]
    fn texts_count_as_bpe_openai_counts_them(text in prop_oneof!["\\PC{0,200}", "[a-zA-Z0-9+/]{0,400}", "[ -~\\n]{0,400}"]) {
        prop_assert_eq!(Encoding::Cl100k.count(&text), bpe_openai::cl100k_base().count(text.as_str()));
        prop_assert_eq!(Encoding::O200k.count(&text), bpe_openai::o200k_base().count(text.as_str()));
    }
}
