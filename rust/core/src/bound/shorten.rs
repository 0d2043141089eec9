//! Shortening a text to what its request has room for (B2).

use super::scan::{self, Counter, Scan};
use crate::estimate::{Encoding, escaped_len, escaped_size};

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

/// A shortened text, in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortened<'t> {
    /// The head, or head, [`OMISSION`] and tail.
    pub kept: [&'t str; 3],
    /// What stands behind it.
    pub marker: String,
    /// Bytes of the original in `kept`.
    pub kept_bytes: usize,
    /// Tokens of all of it, where they were limited.
    pub tokens: Option<usize>,
    /// Bytes of all of it inside JSON, without its quotes.
    pub escaped: usize,
}

impl Shortened<'_> {
    /// Adds the text to a buffer.
    pub fn write(&self, buffer: &mut String) {
        buffer.extend(self.kept);
        buffer.push_str(&self.marker);
    }
}

/// Cuts a text to what its limits leave beside the marker, and puts the marker behind it.
///
/// Without an encoding tokens are weighted bytes. The cut is at a character, and at a line end if one lies in the last
/// tenth of what is kept on that side. `head_tail` gives head and tail one half each. Where not even the marker fits, it
/// is sent alone. Takes time linear in what is kept, not in the text.
#[must_use]
pub fn shorten<'t>(
    text: &'t str,
    limits: Limits,
    encoding: Option<Encoding>,
    head_tail: bool,
    marker: Marker<'_>,
) -> Shortened<'t> {
    Shortening::new(text, limits, Counter(encoding), marker).run(head_tail)
}

/// Bytes that are left for what is kept.
#[derive(Clone, Copy)]
struct Room {
    bytes: usize,
    escaped: Option<usize>,
}

impl Room {
    fn less(self, text: &str) -> Self {
        let escaped = escaped_len(text) as usize;
        Self {
            bytes: self.bytes.saturating_sub(text.len()),
            escaped: self.escaped.map(|room| room.saturating_sub(escaped)),
        }
    }

    /// The larger half.
    fn first_half(self) -> Self {
        Self { bytes: self.bytes.div_ceil(2), escaped: self.escaped.map(|room| room.div_ceil(2)) }
    }

    fn second_half(self) -> Self {
        Self { bytes: self.bytes / 2, escaped: self.escaped.map(|room| room / 2) }
    }

    fn is_for_two(self) -> bool {
        self.bytes > 1 && self.escaped.is_none_or(|room| room > 1)
    }

    /// End of the longest head.
    fn head(self, text: &str) -> usize {
        let text = &text[..text.floor_char_boundary(self.bytes)];
        let Some(room) = self.escaped else { return text.len() };
        // Inside JSON no byte takes less than one.
        let bytes = &text.as_bytes()[..text.len().min(room)];
        text.floor_char_boundary(fitting(bytes.chunks(CHUNK), |chunk| chunk.iter(), room))
    }

    /// Start of the longest tail.
    fn tail(self, text: &str) -> usize {
        let from = text.ceil_char_boundary(text.len().saturating_sub(self.bytes));
        let Some(room) = self.escaped else { return from };
        let bytes = &text.as_bytes()[from.max(text.len().saturating_sub(room))..];
        text.ceil_char_boundary(text.len() - fitting(bytes.rchunks(CHUNK), |chunk| chunk.iter().rev(), room))
    }
}

const CHUNK: usize = 256;

/// How many bytes of the chunks, in the order of `bytes`, take no more than `room` inside JSON.
fn fitting<'t, I: Iterator<Item = &'t u8>>(
    chunks: impl Iterator<Item = &'t [u8]>,
    bytes: impl Fn(&'t [u8]) -> I,
    room: usize,
) -> usize {
    let (mut fit, mut left) = (0, room);
    for chunk in chunks {
        let takes = escaped_size(chunk);
        if takes <= left {
            fit += chunk.len();
            left -= takes;
            continue;
        }
        for &byte in bytes(chunk) {
            let takes = escaped_size(&[byte]);
            if takes > left {
                return fit;
            }
            fit += 1;
            left -= takes;
        }
    }
    fit
}

struct Shortening<'t, 'm> {
    text: &'t str,
    limits: Limits,
    counter: Counter,
    marker: Marker<'m>,
    room: Room,
    /// Cost left for what is kept; `None` where tokens cannot be what limits it.
    budget: Option<usize>,
}

impl<'t, 'm> Shortening<'t, 'm> {
    fn new(text: &'t str, limits: Limits, counter: Counter, marker: Marker<'m>) -> Self {
        let widest = marker.text(text.len());
        let room = Room { bytes: limits.bytes.unwrap_or(usize::MAX), escaped: limits.escaped }.less(&widest);
        let most = counter.most_tokens(text.len() + OMISSION.len() + widest.len());
        let budget = limits.tokens.filter(|&tokens| tokens < most);
        let budget = budget.map(|tokens| counter.budget(tokens).saturating_sub(counter.cost(&widest)));
        Self { text, limits, counter, marker, room, budget }
    }

    fn run(&self, head_tail: bool) -> Shortened<'t> {
        let most = self.room.head(self.text);
        let mut scan = Scan::new(&self.text[..most], self.counter);
        if let Some(budget) = self.budget {
            scan.advance(budget);
        }
        let room = self.room.less(OMISSION);
        let whole = most == self.text.len() && self.budget.is_none_or(|budget| scan.is_within(budget));
        if head_tail && !whole && room.is_for_two() { self.head_and_tail(room) } else { self.head(&scan, most) }
    }

    fn head(&self, scan: &Scan<'_>, most: usize) -> Shortened<'t> {
        let mut budget = self.budget;
        loop {
            let end = budget.map_or(most, |budget| scan.head(budget));
            let end = if end == self.text.len() { end } else { line_end(self.text, end) };
            let marker = self.marker.text(end);
            let cost = budget.map(|_| scan.cost_with(end, &marker));
            match self.less(budget, cost) {
                Less::Fits if end > 0 => return self.kept([&self.text[..end], "", ""], marker, end, cost),
                Less::Fits | Less::Nothing => return self.nothing(),
                Less::Try(less) => budget = Some(less),
            }
        }
    }

    fn head_and_tail(&self, room: Room) -> Shortened<'t> {
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
            let parts = [&self.text[..head], OMISSION, &self.text[tail..]];
            let cost = budget.map(|_| self.counter.cost(&[&parts.concat(), &*marker].concat()));
            match self.less(budget, cost) {
                Less::Fits if kept > 0 => return self.kept(parts, marker, kept, cost),
                Less::Fits | Less::Nothing => return self.nothing(),
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

    fn kept(&self, kept: [&'t str; 3], marker: String, kept_bytes: usize, cost: Option<usize>) -> Shortened<'t> {
        let escaped = kept.into_iter().chain([&*marker]).map(escaped_len).sum::<u64>() as usize;
        let cost = || cost.unwrap_or_else(|| self.counter.cost(&[&*kept.concat(), &marker].concat()));
        let tokens = self.limits.tokens.map(|_| self.counter.tokens(cost()));
        Shortened { kept, marker, kept_bytes, tokens, escaped }
    }

    /// The marker alone, which needs no line of its own.
    fn nothing(&self) -> Shortened<'t> {
        let marker = self.marker.text(0).trim_start().to_owned();
        self.kept([""; 3], marker, 0, None)
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
