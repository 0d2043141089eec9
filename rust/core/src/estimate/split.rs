//! Cuts text into pieces exactly as the encodings' published patterns do, without a regex engine.
//!
//! Each function returns the end of the piece that starts at `at`, which must lie inside the text. The comments name
//! the alternative of the pattern that a branch stands for. A piece is found in time linear in the run of characters
//! around it, and a run is scanned at most three times.

use super::ascii;
use super::classes::{CASELESS, LETTER, LOWER, MARK, NEWLINE, NUMBER, SPACE, UPPER, class_at};

/// `[^\r\n\p{L}\p{N}]?[U]*[L]+(?i:'s|…)?`, `[^\r\n\p{L}\p{N}]?[U]+[L]*(?i:'s|…)?`, `\p{N}{1,3}`,
/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`, `\s*[\r\n]+`, `\s+(?!\S)`, `\s+`, where U is `\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}` and L is
/// `\p{Ll}\p{Lm}\p{Lo}\p{M}`.
#[inline]
pub fn o200k(text: &[u8], at: usize) -> usize {
    ascii::capitals_then_small(text, at).unwrap_or_else(|| o200k_any(text, at))
}

fn o200k_any(text: &[u8], at: usize) -> usize {
    let (class, len) = class_at(text, at);
    if class & LETTER != 0 {
        let (end, _) = word(text, at);
        return contraction(text, end).unwrap_or(end);
    }
    if class & NUMBER != 0 {
        return numbers(text, at + len);
    }
    if class & NEWLINE == 0 {
        let (next, _) = class_at(text, at + len);
        if next & (LETTER | MARK) != 0 {
            let (end, has_lower) = word(text, at + len);
            // A mark is also a letter of the word: with only capitals after it, the first alternative without the
            // optional character wins over the second alternative with it.
            let end = if has_lower || class & MARK == 0 { end } else { at + len };
            return contraction(text, end).unwrap_or(end);
        }
        if class & MARK != 0 {
            return contraction(text, at + len).unwrap_or(at + len);
        }
        if let Some(end) = symbols(text, at, class, len) {
            return run_of(text, end, |byte| matches!(byte, b'\r' | b'\n' | b'/'));
        }
    }
    let run = spaces(text, at);
    if run.newline_end > at {
        return run.newline_end;
    }
    run.end_before_word(text)
}

/// `'(?i:[sdmt]|ll|ve|re)`, `[^\r\n\p{L}\p{N}]?+\p{L}++`, `\p{N}{1,3}+`, ` ?[^\s\p{L}\p{N}]++[\r\n]*+`, `\s++$`,
/// `\s*[\r\n]`, `\s+(?!\S)`, `\s`.
#[inline]
pub fn cl100k(text: &[u8], at: usize) -> usize {
    ascii::letters(text, at).unwrap_or_else(|| cl100k_any(text, at))
}

fn cl100k_any(text: &[u8], at: usize) -> usize {
    if let Some(end) = contraction(text, at) {
        return end;
    }
    let (class, len) = class_at(text, at);
    if class & LETTER != 0 {
        return letters(text, at + len);
    }
    if class & NUMBER != 0 {
        return numbers(text, at + len);
    }
    if class & NEWLINE == 0 {
        let (next, next_len) = class_at(text, at + len);
        if next & LETTER != 0 {
            return letters(text, at + len + next_len);
        }
        if let Some(end) = symbols(text, at, class, len) {
            return run_of(text, end, |byte| matches!(byte, b'\r' | b'\n'));
        }
    }
    let run = spaces(text, at);
    if run.end == text.len() {
        return run.end;
    }
    if run.newline_end > at {
        return run.newline_end;
    }
    run.end_before_word(text)
}

/// End of the o200k word at `at`, and whether the first alternative matched it.
///
/// The first character is a letter or a mark. Capitals are taken greedily; if no small letter follows, the first
/// alternative gives back up to its last character that counts as both.
fn word(text: &[u8], at: usize) -> (usize, bool) {
    let mut end = at;
    let mut both_end = at;
    let after = loop {
        let (class, len) = class_at(text, end);
        if class & (UPPER | CASELESS | MARK) == 0 {
            break class;
        }
        end += len;
        if class & (CASELESS | MARK) != 0 {
            both_end = end;
        }
    };
    if after & LOWER != 0 {
        loop {
            let (class, len) = class_at(text, end);
            if class & (LOWER | CASELESS | MARK) == 0 {
                return (end, true);
            }
            end += len;
        }
    }
    if both_end > at { (both_end, true) } else { (end, false) }
}

/// End of a contraction at `at`. Case folding makes U+017F (long s) an s.
fn contraction(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at) != Some(&b'\'') {
        return None;
    }
    let second = text.get(at + 2).map(u8::to_ascii_lowercase);
    match (text.get(at + 1)?.to_ascii_lowercase(), second) {
        (b's' | b'd' | b'm' | b't', _) => Some(at + 2),
        (b'l', Some(b'l')) | (b'v' | b'r', Some(b'e')) | (0xC5, Some(0xBF)) => Some(at + 3),
        _ => None,
    }
}

fn letters(text: &[u8], mut at: usize) -> usize {
    loop {
        let (class, len) = class_at(text, at);
        if class & LETTER == 0 {
            return at;
        }
        at += len;
    }
}

/// End of up to two more numbers.
fn numbers(text: &[u8], mut at: usize) -> usize {
    for _ in 0..2 {
        let (class, len) = class_at(text, at);
        if class & NUMBER == 0 {
            break;
        }
        at += len;
    }
    at
}

/// End of ` ?[^\s\p{L}\p{N}]+` at `at`, whose character has the given class and length.
fn symbols(text: &[u8], at: usize, class: u8, len: usize) -> Option<usize> {
    const NOT: u8 = LETTER | NUMBER | SPACE;
    let mut end = at;
    if class & NOT == 0 {
        end += len;
    } else if text[at] != b' ' {
        return None;
    } else {
        let (next, next_len) = class_at(text, at + 1);
        if next & NOT != 0 || next_len == 0 {
            return None;
        }
        end += 1 + next_len;
    }
    loop {
        let (class, len) = class_at(text, end);
        if class & NOT != 0 || len == 0 {
            return Some(end);
        }
        end += len;
    }
}

fn run_of(text: &[u8], mut at: usize, holds: impl Fn(u8) -> bool) -> usize {
    while text.get(at).is_some_and(|&byte| holds(byte)) {
        at += 1;
    }
    at
}

struct Spaces {
    start: usize,
    end: usize,
    last_start: usize,
    /// End of the last newline in the run, or its start.
    newline_end: usize,
}

fn spaces(text: &[u8], start: usize) -> Spaces {
    let mut run = Spaces { start, end: start, last_start: start, newline_end: start };
    loop {
        let (class, len) = class_at(text, run.end);
        if class & SPACE == 0 {
            return run;
        }
        run.last_start = run.end;
        run.end += len;
        if class & NEWLINE != 0 {
            run.newline_end = run.end;
        }
    }
}

impl Spaces {
    /// `\s+(?!\S)`, else one character: the last space before a word belongs to the word.
    fn end_before_word(&self, text: &[u8]) -> usize {
        if self.end < text.len() && self.last_start > self.start { self.last_start } else { self.end }
    }
}
