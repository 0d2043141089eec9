//! Shortening a text to a size (B2).

use super::shorten::OMISSION;
use crate::estimate::Encoding;

/// A shortened text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// What is kept: the head, or head, [`OMISSION`] and tail.
    pub kept: String,
    /// Bytes of the original in `kept`; the omission mark is not among them.
    pub kept_bytes: usize,
}

/// Cuts a text to at most `max_bytes`, the omission mark included.
///
/// The cut is at a character boundary, and at a line end if one lies in the last tenth of what is kept on that side.
/// `head_tail` gives head and tail one half each; where that leaves less than a byte for each, only a head is kept.
#[must_use]
pub fn cut_text(text: &str, max_bytes: usize, head_tail: bool) -> Cut {
    if text.len() <= max_bytes {
        return whole(text);
    }
    let room = max_bytes.saturating_sub(OMISSION.len());
    if !head_tail || room < 2 {
        return join(text, head_end(text, max_bytes), text.len());
    }
    let head = head_end(text, room.div_ceil(2));
    join(text, head, tail_start(text, head, room - head))
}

/// Cuts a text to at most `max_tokens` of an encoding, the omission mark included; otherwise as [`cut_text`].
///
/// Takes time linear in what is kept, not in the text.
#[must_use]
pub fn cut_tokens(text: &str, max_tokens: usize, encoding: Encoding, head_tail: bool) -> Cut {
    if bytes_of_tokens(text, max_tokens, encoding, Side::Head) == text.len() {
        return whole(text);
    }
    // Cutting inside a token, or a piece, can make the rest of it more tokens than it was: then try with fewer.
    let mut budget = max_tokens;
    loop {
        let cut = cut_at_tokens(text, budget, encoding, head_tail);
        let over = encoding.count(&cut.kept).saturating_sub(max_tokens);
        if over == 0 || budget == 0 {
            return cut;
        }
        budget = budget.saturating_sub(over.max(budget / 64));
    }
}

fn cut_at_tokens(text: &str, budget: usize, encoding: Encoding, head_tail: bool) -> Cut {
    let bytes = |tokens, side| bytes_of_tokens(text, tokens, encoding, side);
    let room = budget.saturating_sub(encoding.count(OMISSION));
    if !head_tail || room < 2 {
        return join(text, head_end(text, bytes(budget, Side::Head)), text.len());
    }
    let head = head_end(text, bytes(room.div_ceil(2), Side::Head));
    join(text, head, tail_start(text, head, bytes(room / 2, Side::Tail)))
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Head,
    Tail,
}

/// Bytes of the first or last tokens of a text; all of them if it has no more.
///
/// Encodes a window at that side, a larger one until it holds enough. Tokens at the window's inner end may not be the
/// text's, so the caller counts what it cut.
fn bytes_of_tokens(text: &str, tokens: usize, encoding: Encoding, side: Side) -> usize {
    let mut size = tokens.saturating_mul(6).saturating_add(64);
    loop {
        let window = match side {
            Side::Head => &text[..text.floor_char_boundary(size)],
            Side::Tail => &text[text.ceil_char_boundary(text.len().saturating_sub(size))..],
        };
        let mut lengths = encoding.token_lengths(window);
        if lengths.len() > tokens || window.len() == text.len() {
            if side == Side::Tail {
                lengths.reverse();
            }
            return lengths.iter().take(tokens).sum();
        }
        size = size.saturating_mul(2);
    }
}

fn whole(text: &str) -> Cut {
    Cut { kept: text.to_owned(), kept_bytes: text.len() }
}

fn join(text: &str, head: usize, tail: usize) -> Cut {
    let kept_bytes = head + text.len() - tail;
    let kept = match tail == text.len() {
        true => text[..head].to_owned(),
        false => [&text[..head], OMISSION, &text[tail..]].concat(),
    };
    Cut { kept, kept_bytes }
}

/// The largest good place to end a head of at most `max` bytes.
fn head_end(text: &str, max: usize) -> usize {
    let end = text.floor_char_boundary(max);
    let near = text.floor_char_boundary(end - end / 10);
    text[near..end].rfind('\n').map_or(end, |line| near + line + 1)
}

/// The smallest good place, not before `from`, to start a tail of at most `max` bytes.
fn tail_start(text: &str, from: usize, max: usize) -> usize {
    let start = text.ceil_char_boundary(from.max(text.len() - max.min(text.len())));
    if text[..start].ends_with('\n') {
        return start;
    }
    let near = text.ceil_char_boundary(start + (text.len() - start) / 10);
    text[start..near].find('\n').map_or(start, |line| start + line + 1)
}
