//! Counting (4.5) against the reference implementation's Rust port, which shares neither splitter nor merging.

use foldline_core::Error;
use foldline_core::estimate::{Encoding, RowSize, measure_rows, weighted_tokens};
use proptest::prelude::*;
use tiktoken_rs::CoreBPE;

fn reference(encoding: Encoding) -> &'static CoreBPE {
    match encoding {
        Encoding::Cl100k => tiktoken_rs::cl100k_base_singleton(),
        Encoding::O200k => tiktoken_rs::o200k_base_singleton(),
    }
}

fn assert_exact(text: &str) {
    for encoding in Encoding::ALL {
        let expected = reference(encoding).encode_ordinary(text);
        assert_eq!(encoding.encode(text), expected, "{} of {text:?}", encoding.name());
        assert_eq!(encoding.count(text), expected.len(), "{} of {text:?}", encoding.name());
    }
}

#[test]
fn texts_where_the_patterns_differ_or_give_characters_back() {
    let texts = [
        "",
        "a",
        "I'll they'RE it'ſ we'Ve 'S 'x ''s",
        "HTTPServer iPhone ǅabc ABC日DEf 日本A A日本",
        "e\u{301}\u{301}A \u{301}ABC \u{301}\u{301} !\u{301}a ʰA aʰ",
        "1234567 ²³¼½ ٣٤٥٦ 1a 12ab",
        "  x \n\n  y\r\n\t z   ",
        "a \n",
        "a  \n  ",
        "\u{3000}\u{3000}x \u{a0}\u{a0}y \u{2003}",
        " !!! ?//\r\n/\n ./a //b !\n\n",
        "<|endoftext|><|fim_prefix|> <|endofprompt|>",
        "\0\0\0 \u{10FFFF}\u{E000}",
        "👩‍🚀👨‍👩‍👧‍👦❤️🏳️‍🌈",
    ];
    for text in texts {
        assert_exact(text);
        assert_exact(&format!("{text} tail of more than sixteen characters"));
        assert_exact(&format!("{text}{text}"));
    }
}

#[test]
fn runs_of_one_character_of_every_length() {
    for unit in ["a", " ", "\n", "=", "-", "A", "0", "日", "é", "\u{301}", "😀", "ab", "\r\n", " \n", "=-"] {
        for many in (1..140).chain([255, 256, 257, 1_000]) {
            assert_exact(&unit.repeat(many));
        }
        assert_exact(&format!(" {}\n", unit.repeat(77)));
        assert_exact(&format!("x{}y", unit.repeat(130)));
    }
}

#[test]
fn special_token_text_is_plain_text() {
    for encoding in Encoding::ALL {
        assert!(encoding.count("<|endoftext|>") > 1);
    }
}

#[test]
fn a_text_of_ten_megabytes_ends() {
    for unit in ["a", " ", "=", "ab", "\u{301}", "日", "😀"] {
        let text = unit.repeat(10_000_000 / unit.len());
        assert!(Encoding::O200k.count(&text) > 0);
    }
}

#[test]
fn an_unknown_encoding_is_refused_by_name() {
    let error = Encoding::from_name("gpt2").unwrap_err();
    assert_eq!(error.reason(), "UNKNOWN_ENCODING");
    assert!(error.to_string().contains("gpt2"));
}

/// Characters at which the patterns branch, each with its neighbours likely.
fn adversarial() -> impl Strategy<Value = String> {
    let units = prop::sample::select(vec![
        "a",
        "b",
        "Z",
        "Q",
        "é",
        "É",
        "日",
        "本",
        "ǅ",
        "ʰ",
        "\u{301}",
        "\u{300}",
        "1",
        "²",
        "٣",
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\u{3000}",
        "\u{a0}",
        "\u{85}",
        "!",
        "/",
        "_",
        "'",
        "'s",
        "'LL",
        "'ſ",
        "<|endoftext|>",
        "😀",
        "\0",
        ".",
        "the",
        " The",
    ]);
    prop::collection::vec(units, 0..40).prop_map(|units| units.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn adversarial_strings_count_exactly(text in adversarial()) {
        assert_exact(&text);
    }

    #[test]
    fn any_unicode_counts_exactly(text in "\\PC{0,60}") {
        assert_exact(&text);
    }

    /// Long single pieces are where merging, not splitting, can go wrong.
    #[test]
    fn long_pieces_count_exactly(text in prop_oneof!["[a-z]{1,400}", "[ab]{1,400}", "[A-Z]{1,200}", "[一-龥]{1,200}", "[=\\-#]{1,300}"]) {
        assert_exact(&text);
    }

    #[test]
    fn runs_in_runs_count_exactly(runs in prop::collection::vec((prop::sample::select(vec!['=', '-', '#', '/', '*', '.']), 1usize..90), 1..10)) {
        let text: String = runs.into_iter().flat_map(|(unit, many)| std::iter::repeat_n(unit, many)).collect();
        assert_exact(&text);
    }

    /// The estimate without a vocabulary stays within a factor of the count with one, on text of any mixture.
    #[test]
    fn weighted_tokens_stay_near_a_count(words in prop::collection::vec("[a-z]{2,9}|[0-9]{1,6}|[一-龥]{2,6}|\\{\"[a-z]{3,6}\": [0-9]{1,3}\\}", 20..60)) {
        let text = words.join(" ");
        let exact = Encoding::O200k.count(&text) as f64;
        let ratio = weighted_tokens(&text) as f64 / exact;
        prop_assert!((0.4..2.0).contains(&ratio), "{ratio} of {text}");
    }
}

fn size_of(json: &str, encoding: Option<Encoding>) -> RowSize {
    measure_rows([json.as_bytes()], encoding).expect("a row body")[0]
}

/// Tokens of a row with one block, less the four of the row.
fn block_tokens(block: &str) -> u64 {
    size_of(&format!(r#"{{"type":"user","content":[{block}]}}"#), Some(Encoding::O200k)).tokens - 4
}

#[test]
fn each_block_type_counts_by_its_rule() {
    let hello = Encoding::O200k.count("hello world") as u64;
    let base64 = "A".repeat(40_000);
    assert_eq!(block_tokens(r#"{"type":"text","text":"hello world"}"#), hello);
    assert_eq!(block_tokens(r#"{"type":"transcript","text":"hello world"}"#), hello);
    assert_eq!(block_tokens(r#"{"type":"structured","json":"hello world"}"#), hello);
    assert_eq!(
        block_tokens(r#"{"type":"reasoning","text":"hello world","state":"12345678","signature":"123"}"#),
        hello + 3
    );
    assert_eq!(
        block_tokens(r#"{"type":"tool_call","call_id":"c","name":"hello world","arguments_json":"hello world"}"#),
        2 * hello
    );
    assert_eq!(block_tokens(r#"{"type":"server_tool","name":"hello world","json":"hello world"}"#), 2 * hello);
    assert_eq!(block_tokens(&format!(r#"{{"type":"image","data":"{base64}"}}"#)), 1_600);
    assert_eq!(block_tokens(r#"{"type":"image","url":"u","tokens_hint":2000}"#), 2_000);
    assert_eq!(block_tokens(r#"{"type":"image","url":"u","tokens_hint":85}"#), 1_600);
    assert_eq!(block_tokens(&format!(r#"{{"type":"video","data":"{base64}","duration_seconds":10}}"#)), 10_000);
    assert_eq!(block_tokens(&format!(r#"{{"type":"video","data":"{base64}","duration_seconds":100.5}}"#)), 30_150);
    assert_eq!(block_tokens(&format!(r#"{{"type":"audio","data":"{base64}"}}"#)), 10_000);
    assert_eq!(
        block_tokens(&format!(r#"{{"type":"document","data":"{base64}","title":"hello world"}}"#)),
        10_000 + hello
    );
}

#[test]
fn a_block_with_anything_in_it_is_a_token_and_an_empty_one_is_none() {
    assert_eq!(block_tokens(r#"{"type":"audio","url":"https://example.com/a.mp3"}"#), 1);
    assert_eq!(block_tokens(r#"{"type":"text","text":""}"#), 0);
}

#[test]
fn row_fields_that_reach_a_provider_count() {
    let count = |json: &str| size_of(json, Some(Encoding::O200k));
    let hello = Encoding::O200k.count("hello world") as u64;
    assert_eq!(count(r#"{"type":"system","content":[]}"#).tokens, 4);
    assert_eq!(
        count(r#"{"type":"compaction_summary","text":"hello world","fold_id":"f","source":"PROVIDER"}"#).tokens,
        4 + hello
    );
    assert_eq!(count(r#"{"type":"compaction_summary","text":"","ledger":"hello world"}"#).tokens, 4 + hello);
    assert_eq!(count(r#"{"type":"tool_result","call_id":"c","usage_mark":"hello world"}"#).tokens, 4 + hello);
    assert_eq!(count(r#"{"type":"provider_compaction","item_json":"12345678","model":{}}"#).tokens, 6);
}

#[test]
fn bytes_are_those_of_the_escaped_json() {
    let bytes = |json: &str| size_of(json, None).bytes;
    let empty = bytes(r#"{"type":"user","content":[{"type":"text","text":""}]}"#);
    assert_eq!(bytes(r#"{"type":"user","content":[{"type":"text","text":"abc"}]}"#), empty + 3);
    assert_eq!(bytes(r#"{"type":"user","content":[{"type":"text","text":"\"\\\n\u0001"}]}"#), empty + 2 + 2 + 2 + 6);
    assert_eq!(bytes(r#"{"type":"user","content":[{"type":"text","text":"é日"}]}"#), empty + 5);
    assert_eq!(bytes(r#"{"type":"user","content":[{"type":"image","data":"AAAA"}],"extra":"{}"}"#), empty + 6);
}

#[test]
fn unknown_fields_are_ignored_and_everything_else_wrong_is_an_error() {
    assert_eq!(
        size_of(r#"{"type":"user","content":[{"type":"text","text":"","new":[1,{}]}],"new":null}"#, None).tokens,
        4
    );
    let bad = [
        "",
        "{",
        "null",
        "[]",
        r#"["user",[]]"#,
        "{}",
        r#"{"type":1}"#,
        r#"{"type":"robot"}"#,
        r#"{"type":"user","content":[["text","a"]]}"#,
        r#"{"type":"user","content":[{"type":"robot"}]}"#,
        r#"{"type":"user","content":[{"type":"image","tokens_hint":-1}]}"#,
        r#"{"type":"user","content":[{"type":"text","text":"\ud800"}]}"#,
        r#"{"type":"user"} x"#,
    ];
    for json in bad {
        let rows = [&br#"{"type":"user"}"#[..], json.as_bytes()];
        match measure_rows(rows, None) {
            Err(Error::RowInvalid { index: 1, .. }) => {}
            other => panic!("{json}: {other:?}"),
        }
    }
    let nested = format!(r#"{{"type":"user","new":{}"#, "[".repeat(200_000));
    assert!(measure_rows([nested.as_bytes()], None).is_err());
}

#[test]
fn hostile_durations_and_hints_do_not_overflow() {
    for duration in ["1e308", "-5", "0.0"] {
        let row =
            format!(r#"{{"type":"user","content":[{{"type":"video","url":"u","duration_seconds":{duration}}}]}}"#);
        assert!(size_of(&row, None).tokens <= u64::from(u32::MAX));
    }
    let hint = format!(r#"{{"type":"image","url":"u","tokens_hint":{}}}"#, u64::MAX);
    assert_eq!(block_tokens(&format!("{hint},{hint}")), u64::from(u32::MAX) - 4);
}

proptest! {
    #[test]
    fn measuring_never_panics(json in "[\\{\\}\\[\\]\",:a-z0-9\\\\]{0,80}") {
        let _ = measure_rows([json.as_bytes()], Some(Encoding::O200k));
    }

    #[test]
    fn a_row_counts_its_blocks(texts in prop::collection::vec("\\PC{0,30}", 0..6)) {
        let blocks: Vec<String> = texts
            .iter()
            .map(|text| format!(r#"{{"type":"text","text":{}}}"#, serde_json::to_string(text).unwrap()))
            .collect();
        let row = format!(r#"{{"type":"user","content":[{}]}}"#, blocks.join(","));
        let tokens: u64 = texts.iter().map(|text| Encoding::Cl100k.count(text) as u64).sum();
        let escaped: usize = texts.iter().map(|text| serde_json::to_string(text).unwrap().len() - 2).sum();
        let size = size_of(&row, Some(Encoding::Cl100k));
        prop_assert_eq!(size.tokens, 4 + tokens);
        prop_assert_eq!(size.bytes, 40 + 56 * texts.len() as u64 + escaped as u64);
    }
}
