//! Counting a text no further than a budget needs (B1, B2).(B2).

use crate::estimate::{Encoding, WEIGHT, walk_weights};

/// The end of a window or a cut can change how the last characters fall into pieces: into two where there was one.
/// Pieces further back than this many are those of the whole text.
const UNSURE: usize = 4;
/// What a window is first taken for: most text has as many bytes a token.
const BYTES_A_TOKEN: usize = 4;

/// How tokens are counted: exactly, in an embedded encoding, or as weighted bytes. Costs are in parts of a token.
#[derive(Clone, Copy)]
pub struct Counter(pub Option<Encoding>);

impl Counter {
    /// Parts of a token.
    fn unit(self) -> usize {
        if self.0.is_some() { 1 } else { WEIGHT }
    }

    /// More tokens than any text of that many bytes can have.
    pub fn most_tokens(self, bytes: usize) -> usize {
        // A token has a byte, and no byte weighs more than a token by itself.
        bytes.saturating_add(1)
    }

    /// Cost of that many tokens.
    pub fn budget(self, tokens: usize) -> usize {
        tokens.saturating_mul(self.unit())
    }

    /// Cost of a text.
    pub fn cost(self, text: &str) -> usize {
        let mut total = 0;
        self.walk(text, |_, cost| total += cost);
        total
    }

    /// Whole tokens of a cost.
    pub fn tokens(self, cost: usize) -> usize {
        cost.div_ceil(self.unit())
    }

    #[inline]
    fn walk(self, text: &str, each: impl FnMut(usize, usize)) {
        match self.0 {
            Some(encoding) => encoding.walk(text, each),
            None => walk_weights(text, each),
        }
    }

    /// Length of a head of a piece that costs no more than the budget, by the piece's density.
    fn head(self, piece: &str, mut cost: usize, budget: usize) -> usize {
        let mut len = piece.len();
        while cost > budget {
            len = piece.floor_char_boundary(part(len, budget, cost));
            cost = self.cost(&piece[..len]);
        }
        len
    }

    /// The same of a tail.
    fn tail(self, piece: &str, mut cost: usize, budget: usize) -> usize {
        let mut len = piece.len();
        while cost > budget {
            let start = piece.ceil_char_boundary(piece.len() - part(len, budget, cost));
            len = piece.len() - start;
            cost = self.cost(&piece[start..]);
        }
        len
    }
}

/// `len * budget / cost`, less than `len` where the budget is less than the cost.
fn part(len: usize, budget: usize, cost: usize) -> usize {
    (len as u128 * budget as u128 / cost as u128) as usize
}

/// The end of a piece and the cost up to there.
#[derive(Clone, Copy)]
struct Mark {
    end: usize,
    cost: usize,
}

/// A text counted from its start, as far as was asked for.
pub struct Scan<'t> {
    text: &'t str,
    counter: Counter,
    marks: Vec<Mark>,
}

impl<'t> Scan<'t> {
    pub fn new(text: &'t str, counter: Counter) -> Self {
        Self { text, counter, marks: vec![Mark { end: 0, cost: 0 }] }
    }

    fn last(&self) -> Mark {
        self.marks[self.marks.len() - 1]
    }

    /// Cost of what was counted.
    pub fn cost(&self) -> usize {
        self.last().cost
    }

    /// Whether all of the text was counted, and is within a budget.
    pub fn is_within(&self, budget: usize) -> bool {
        self.is_done() && self.cost() <= budget
    }

    /// Whether all of the text was counted.
    pub fn is_done(&self) -> bool {
        self.last().end == self.text.len()
    }

    /// Counts on, to where the cost exceeds the budget, or to the end.
    ///
    /// Takes windows of about what is missing, so that a piece of a megabyte is not merged whole for its first tokens.
    pub fn advance(&mut self, budget: usize) {
        let mut least = 64;
        while self.cost() <= budget && !self.is_done() {
            let known = self.marks.len();
            let from = self.last();
            let missing = self.counter.tokens(budget - from.cost).saturating_mul(BYTES_A_TOKEN);
            let size = missing.saturating_add(least);
            let to = self.text.floor_char_boundary(from.end.saturating_add(size));
            let mut cost = from.cost;
            let marks = &mut self.marks;
            self.counter.walk(&self.text[from.end..to], |end, more| {
                cost += more;
                marks.push(Mark { end: from.end + end, cost });
            });
            if to < self.text.len() {
                self.marks.truncate(self.marks.len().saturating_sub(UNSURE).max(known));
                // A piece longer than the window.
                least = if self.marks.len() == known { size.saturating_mul(2) } else { 64 };
            }
        }
    }

    /// Forgets all but how far it came.
    pub fn forget(&mut self) {
        self.marks.drain(..self.marks.len() - 1);
    }

    /// End of the longest head within a budget that was counted to; inside a piece, about.
    pub fn head(&self, budget: usize) -> usize {
        let over = self.marks.partition_point(|mark| mark.cost <= budget);
        let Mark { end, cost } = self.marks[over - 1];
        match self.marks.get(over) {
            Some(next) => end + self.counter.head(&self.text[end..next.end], next.cost - cost, budget - cost),
            None => end,
        }
    }

    /// Start of the longest tail within a budget of a text that was counted whole; inside a piece, about.
    fn tail(&self, budget: usize) -> usize {
        let total = self.cost();
        let first = self.marks.partition_point(|mark| total - mark.cost > budget);
        let Mark { end, cost } = self.marks[first];
        if first == 0 {
            return end;
        }
        let before = self.marks[first - 1];
        let piece = &self.text[before.end..end];
        end - self.counter.tail(piece, cost - before.cost, budget - (total - cost))
    }

    /// Cost of a head of what was counted with more text behind it.
    pub fn cost_with(&self, end: usize, more: &str) -> usize {
        let within = self.marks.partition_point(|mark| mark.end <= end);
        let sure = self.marks[within.saturating_sub(UNSURE)];
        sure.cost + self.counter.cost(&[&self.text[sure.end..end], more].concat())
    }
}

/// Start of the longest tail within a budget, about.
pub fn tail(text: &str, counter: Counter, budget: usize) -> usize {
    let mut size = counter.tokens(budget).saturating_mul(BYTES_A_TOKEN).saturating_add(64);
    loop {
        let from = text.ceil_char_boundary(text.len().saturating_sub(size));
        let mut scan = Scan::new(&text[from..], counter);
        scan.advance(usize::MAX);
        if scan.cost() > budget || from == 0 {
            return from + scan.tail(budget);
        }
        size = size.saturating_mul(2);
    }
}
