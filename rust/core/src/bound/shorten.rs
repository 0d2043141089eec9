//! Shortening a text to what its request has room for (B2).

use super::scan::{self, Counter, Scan};
use crate::estimate::{Encoding, escaped_byte, escaped_len};

/// Stands between head and tail.
pub const OMISSION: &str = "\n…\n";

/// What a shortened text may take with its marker; `None` leaves an axis free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Bytes of the text inside JSON, without its quotes.
    pub escaped: Option<usize>,
    /// Bytes of the text.
    pub bytes: Option<usize>,
    /// Tokens of the text.
    pub tokens: Option<usize>,
}

/// The words that end a shortened text, around the number of bytes that are kept.
#[derive(Clone, Copy, Debug)]
pub struct Marker<'a> {
    /// Before the number.
    pub before: &'a str,
    /// Behind it.
    pub after: &'a str,
}

impl Marker<'_> {
    fn text(self, kept: usize) -> String {
        format!("{}{kept}{}", self.before, self.after)
    }
}

/// A shortened text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortened {
    /// The head, or head, [`OMISSION`] and tail, and the marker.
    pub text: String,
    /// Bytes of the original in it.
    pub kept_bytes: usize,
    /// Tokens of `text`, where they were limited.
    pub tokens: Option<usize>,
    /// Bytes of `text` inside JSON, without its quotes.
    pub escaped: usize,
}

/// Cuts a text to what its limits leave beside the marker, and puts the marker behind it.
///
/// Without an encoding tokens are weighted bytes. The cut is at a character, and at a line end if one lies in the last
/// tenth of what is kept on that side. `head_tail` gives head and tail one half each. Where not even the marker fits, it
/// is sent alone. Takes time linear in what is kept, not in the text.
#[must_use]
pub fn shorten(
    text: &str,
    limits: Limits,
    encoding: Option<Encoding>,
    head_tail: bool,
    marker: Marker<'_>,
) -> Shortened {
    Shortening::new(text, limits, Counter(encoding), marker).run(head_tail)
}

/// Bytes that are left for what is kept.
#[derive(Clone, Copy)]
struct Room {
    bytes: usize,
    escaped: usize,
}

impl Room {
    fn less(self, text: &str) -> Self {
        let escaped = escaped_len(text) as usize;
        Self { bytes: self.bytes.saturating_sub(text.len()), escaped: self.escaped.saturating_sub(escaped) }
    }

    /// The larger half.
    fn first_half(self) -> Self {
        Self { bytes: self.bytes.div_ceil(2), escaped: self.escaped.div_ceil(2) }
    }

    fn second_half(self) -> Self {
        Self { bytes: self.bytes / 2, escaped: self.escaped / 2 }
    }

    /// End of the longest head.
    fn head(self, text: &str) -> usize {
        let text = &text[..text.floor_char_boundary(self.bytes)];
        text.floor_char_boundary(escaped_fits(text.bytes(), text.len(), self.escaped))
    }

    /// Start of the longest tail.
    fn tail(self, text: &str) -> usize {
        let from = text.ceil_char_boundary(text.len().saturating_sub(self.bytes));
        let text = &text[from..];
        from + text.ceil_char_boundary(text.len() - escaped_fits(text.bytes().rev(), text.len(), self.escaped))
    }
}

/// How many of the bytes, from the first on, take no more than `room` inside JSON.
fn escaped_fits(bytes: impl Iterator<Item = u8>, len: usize, room: usize) -> usize {
    let mut left = room;
    for (at, byte) in bytes.enumerate() {
        let takes = escaped_byte(byte);
        if takes > left {
            return at;
        }
        left -= takes;
    }
    len
}

struct Shortening<'a> {
    text: &'a str,
    limits: Limits,
    counter: Counter,
    marker: Marker<'a>,
    room: Room,
    /// Cost left for what is kept.
    budget: Option<usize>,
}

impl<'a> Shortening<'a> {
    fn new(text: &'a str, limits: Limits, counter: Counter, marker: Marker<'a>) -> Self {
        let widest = marker.text(text.len());
        let all = |limit: Option<usize>| limit.unwrap_or(usize::MAX);
        let room = Room { bytes: all(limits.bytes), escaped: all(limits.escaped) }.less(&widest);
        let budget = limits.tokens.map(|tokens| counter.budget(tokens).saturating_sub(counter.cost(&widest)));
        Self { text, limits, counter, marker, room, budget }
    }

    fn run(&self, head_tail: bool) -> Shortened {
        let most = self.room.head(self.text);
        let mut scan = Scan::new(&self.text[..most], self.counter);
        if let Some(budget) = self.budget {
            scan.advance(budget);
        }
        let room = self.room.less(OMISSION);
        let whole = most == self.text.len() && self.budget.is_none_or(|budget| scan.is_within(budget));
        if head_tail && !whole && room.bytes.min(room.escaped) > 1 {
            self.head_and_tail(room)
        } else {
            self.head(&scan, most)
        }
    }

    fn head(&self, scan: &Scan<'_>, most: usize) -> Shortened {
        let mut budget = self.budget;
        loop {
            let end = budget.map_or(most, |budget| scan.head(budget));
            let end = if end == self.text.len() { end } else { line_end(self.text, end) };
            let marker = self.marker.text(end);
            let cost = budget.map(|_| scan.cost_with(end, &marker));
            match self.less(budget, cost) {
                Less::Fits => return self.finish(&[&self.text[..end], &marker], end, cost),
                Less::Nothing => return self.finish(&[], 0, None),
                Less::Try(less) => budget = Some(less),
            }
        }
    }

    fn head_and_tail(&self, room: Room) -> Shortened {
        let (head_most, tail_most) = (room.first_half().head(self.text), room.second_half().tail(self.text));
        let mut scan = Scan::new(&self.text[..head_most], self.counter);
        let mut budget = self.budget.map(|budget| budget.saturating_sub(self.counter.cost(OMISSION)));
        loop {
            let (mut head, mut tail) = (head_most, tail_most);
            if let Some(budget) = budget {
                scan.advance(budget.div_ceil(2));
                head = scan.head(budget.div_ceil(2));
                tail = tail_most + scan::tail(&self.text[tail_most..], self.counter, budget / 2);
            }
            let head = line_end(self.text, head);
            let tail = line_start(self.text, tail.max(head));
            let kept = head + self.text.len() - tail;
            let marker = self.marker.text(kept);
            let parts = [&self.text[..head], OMISSION, &self.text[tail..], &marker];
            let cost = budget.map(|_| self.counter.cost(&parts.concat()));
            match self.less(budget, cost) {
                Less::Fits => return self.finish(&parts, kept, cost),
                Less::Nothing => return self.finish(&[], 0, None),
                Less::Try(less) => budget = Some(less),
            }
        }
    }

    /// What to try after a text of this cost, which was cut to the budget: cuts cost a little themselves.
    fn less(&self, budget: Option<usize>, cost: Option<usize>) -> Less {
        let (Some(budget), Some(cost), Some(tokens)) = (budget, cost, self.limits.tokens) else { return Less::Fits };
        match cost.saturating_sub(self.counter.budget(tokens)) {
            0 => Less::Fits,
            _ if budget == 0 => Less::Nothing,
            over => Less::Try(budget.saturating_sub(over)),
        }
    }

    fn finish(&self, parts: &[&str], kept_bytes: usize, cost: Option<usize>) -> Shortened {
        let (mut text, mut cost) = (parts.concat(), cost);
        if kept_bytes == 0 {
            // Alone the marker needs no line of its own.
            text = self.marker.text(0).trim_start().to_owned();
            cost = self.limits.tokens.map(|_| self.counter.cost(&text));
        }
        let escaped = escaped_len(&text) as usize;
        Shortened { kept_bytes, tokens: cost.map(|cost| self.counter.tokens(cost)), escaped, text }
    }
}

enum Less {
    Fits,
    Nothing,
    Try(usize),
}

/// The largest good place to end a head of at most `end` bytes.
fn line_end(text: &str, end: usize) -> usize {
    let near = text.floor_char_boundary(end - end / 10);
    text[near..end].rfind('\n').map_or(end, |line| near + line + 1)
}

/// The smallest good place to start a tail, not before `start`.
fn line_start(text: &str, start: usize) -> usize {
    if text[..start].ends_with('\n') {
        return start;
    }
    let near = text.ceil_char_boundary(start + (text.len() - start) / 10);
    text[start..near].find('\n').map_or(start, |line| start + line + 1)
}
