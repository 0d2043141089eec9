//! A token estimate for vocabularies that are not embedded.
//!
//! Every character weighs a part of a token, by what stands around it, in hundredths:
//!
//! | characters | weight |
//! |---|---|
//! | a run of ASCII letters | 100 up to five letters, 20 for each further one |
//! | an ASCII digit | 40 |
//! | a run of at least 24 ASCII letters and digits with small, capital and digit among them (base64, hashes) | 60 each |
//! | ASCII punctuation (JSON, code) | 55 each |
//! | one space between others | 0 |
//! | a longer run of ASCII white space, or one that is no space | 100 for the run |
//! | Han, kana, Hangul | 110 each |
//! | other letters of two bytes (Latin with accents, Greek, Cyrillic, Hebrew, Arabic) | 45 each |
//! | all else outside ASCII | 60 for each byte past the first |
//!
//! The sum is rounded up. A text that is not empty has at least one token.

/// What makes one token.
pub const WEIGHT: usize = 100;

/// Estimated tokens of a text, by weighted bytes; linear in its length.
#[must_use]
pub fn weighted_tokens(text: &str) -> usize {
    let mut hundredths = 0;
    walk(text, |_, weight| hundredths += weight);
    hundredths.div_ceil(WEIGHT).max(usize::from(!text.is_empty()))
}

/// Calls `each(end, weight)` for every run of characters that is weighed as one.
#[inline]
pub fn walk(text: &str, mut each: impl FnMut(usize, usize)) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        let weight = if byte.is_ascii_alphanumeric() {
            at += bytes[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
            alphanumerics(&bytes[start..at])
        } else if byte.is_ascii_whitespace() {
            at += bytes[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            if at - start > 1 || byte != b' ' { WEIGHT } else { 0 }
        } else if byte < 0x80 {
            at += 1;
            55
        } else {
            let wide = text[at..].chars().next().unwrap_or('\u{FFFD}');
            at += wide.len_utf8();
            wide_weight(wide)
        };
        each(at, weight);
    }
}

fn alphanumerics(run: &[u8]) -> usize {
    let dense = run.len() >= 24
        && run.iter().any(u8::is_ascii_digit)
        && run.iter().any(u8::is_ascii_lowercase)
        && run.iter().any(u8::is_ascii_uppercase);
    if dense {
        return run.len() * 60;
    }
    run.chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit())
        .map(|part| if part[0].is_ascii_digit() { part.len() * 40 } else { 100 + part.len().saturating_sub(5) * 20 })
        .sum()
}

fn wide_weight(wide: char) -> usize {
    match wide {
        '\u{1100}'..='\u{11FF}' | '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7FF}' | '\u{F900}'..='\u{FAFF}' => 110,
        '\u{FF00}'..='\u{FFEF}' | '\u{20000}'..='\u{3FFFF}' => 110,
        _ if wide.len_utf8() == 2 => 45,
        _ => 60 * (wide.len_utf8() - 1),
    }
}
