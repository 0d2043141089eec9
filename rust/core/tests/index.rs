//! The lexical index (M4): terms of texts, postings of words.

use foldline_core::index::{POSTING_BYTES, Words, ascii_terms};
use proptest::prelude::*;

fn terms(text: &str) -> Vec<String> {
    ascii_terms(text, usize::MAX).expect("an ASCII text").split_whitespace().map(str::to_owned).collect()
}

#[test]
fn m4_identifiers_give_their_whole_and_their_parts() {
    assert_eq!(terms("src/app/main_loop.py"), ["srcappmainlooppy", "src", "app", "mainlooppy", "main", "loop", "py"]);
    assert_eq!(terms("HTTPServerError"), ["httpservererror", "http", "server", "error"]);
    assert_eq!(terms("it's Ann's, don't"), ["it", "ann", "dont"]);
    assert_eq!(terms("1,237,145 tokens 12,34"), ["1237145", "237", "145", "tokens", "12", "34"]);
    assert_eq!(terms("a1b2c3d4e5f6a7b8 C"), ["a1b2c3d4e5f6a7b8", "c"]);
    assert_eq!(terms(r"first\nsecond"), ["firstnsecond", "first", "nsecond", "second"]);
    assert_eq!(terms(&"x".repeat(100_000)), ["x".repeat(64)]);
}

#[test]
fn m4_other_scripts_are_left_to_the_general_way() {
    assert_eq!(ascii_terms("café", 9), None);
    assert_eq!(ascii_terms("", 9), Some(String::new()));
    assert_eq!(ascii_terms("one two three", 2), Some("two three".to_owned()));
    assert_eq!(ascii_terms("one two three", 0), Some(String::new()));
}

#[test]
fn m4_postings_hold_entry_counts_and_length() {
    let words = Words::new(["fold folds", "fold", "", "a folds"]);
    assert_eq!(words.words(), ["fold", "folds", "a"]);
    assert_eq!(words.lengths(), [3, 2]);
    let postings = words.postings(&["fold", "fold", "a"]).expect("a stem for each word");
    assert_eq!(postings[0], ("a", vec![1, 0, 0, 0, 0, 1, 2, 0]));
    assert_eq!(postings[1], ("fold", vec![0, 0, 0, 0, 2, 1, 3, 0, 1, 0, 0, 0, 0, 1, 2, 0]));
    assert!(words.postings(&["fold"]).is_err());
}

proptest! {
    #[test]
    fn m4_terms_are_small_short_and_of_letters_and_digits(text in "[ -~\\n]{0,200}") {
        for term in terms(&text) {
            prop_assert!((1..=64).contains(&term.len()));
            prop_assert!(term.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
        }
    }

    #[test]
    fn m4_every_word_of_every_entry_is_counted(columns in prop::collection::vec("[ab]{1,2}( [ab]{1,2}){0,9}", 0..8)) {
        let words = Words::new(columns.iter().map(String::as_str));
        let stems: Vec<&str> = words.words().iter().map(String::as_str).collect();
        let counted: usize = words
            .postings(&stems)
            .expect("a stem for each word")
            .iter()
            .flat_map(|(_, postings)| postings.chunks(POSTING_BYTES))
            .map(|posting| usize::from(posting[4]) + usize::from(posting[5]))
            .sum();
        prop_assert_eq!(counted, columns.iter().map(|column| column.split(' ').count()).sum::<usize>());
    }
}
