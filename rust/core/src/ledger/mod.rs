//! The ledger of an active transcript: one small column row for each row, in list order, with its sums kept.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::{Error, Result};

/// One row of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the row in its session.
    pub offset: u64,
    /// Row type, as the store numbers it.
    pub kind: u8,
    /// Number that the caller gave the row's run; 0 for none.
    pub run: u32,
    /// Round inside its run.
    pub round: u32,
    /// Estimated tokens.
    pub tokens: u32,
    /// Estimated bytes in a request body.
    pub bytes: u64,
}

/// Sums over some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of rows.
    pub rows: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Totals {
    fn add(&mut self, entry: &Entry) {
        self.rows += 1;
        self.tokens += u64::from(entry.tokens);
        self.bytes += entry.bytes;
    }

    fn remove(&mut self, entry: &Entry) {
        self.rows -= 1;
        self.tokens -= u64::from(entry.tokens);
        self.bytes -= entry.bytes;
    }
}

/// Rows as columns of one length, in list order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Offsets.
    pub offsets: Vec<u64>,
    /// Row types.
    pub kinds: Vec<u8>,
    /// Runs.
    pub runs: Vec<u32>,
    /// Rounds.
    pub rounds: Vec<u32>,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Bytes.
    pub bytes: Vec<u64>,
}

impl Columns {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    fn check(&self) -> Result<()> {
        let expected = self.len();
        let lengths = [
            ("kinds", self.kinds.len()),
            ("runs", self.runs.len()),
            ("rounds", self.rounds.len()),
            ("tokens", self.tokens.len()),
            ("bytes", self.bytes.len()),
        ];
        match lengths.into_iter().find(|&(_, actual)| actual != expected) {
            Some((what, actual)) => Err(Error::LengthMismatch { what, actual, expected }),
            None => Ok(()),
        }
    }

    fn entry(&self, at: usize) -> Entry {
        Entry {
            offset: self.offsets[at],
            kind: self.kinds[at],
            run: self.runs[at],
            round: self.rounds[at],
            tokens: self.tokens[at],
            bytes: self.bytes[at],
        }
    }

    /// Adds a row at the end.
    pub fn push(&mut self, entry: Entry) {
        self.offsets.push(entry.offset);
        self.kinds.push(entry.kind);
        self.runs.push(entry.run);
        self.rounds.push(entry.round);
        self.tokens.push(entry.tokens);
        self.bytes.push(entry.bytes);
    }

    fn set(&mut self, at: usize, entry: Entry) {
        self.offsets[at] = entry.offset;
        self.kinds[at] = entry.kind;
        self.runs[at] = entry.run;
        self.rounds[at] = entry.round;
        self.tokens[at] = entry.tokens;
        self.bytes[at] = entry.bytes;
    }

    fn splice(&mut self, range: Range<usize>, with: &Self) {
        self.offsets.splice(range.clone(), with.offsets.iter().copied());
        self.kinds.splice(range.clone(), with.kinds.iter().copied());
        self.runs.splice(range.clone(), with.runs.iter().copied());
        self.rounds.splice(range.clone(), with.rounds.iter().copied());
        self.tokens.splice(range.clone(), with.tokens.iter().copied());
        self.bytes.splice(range, with.bytes.iter().copied());
    }

    fn truncate(&mut self, len: usize) {
        self.offsets.truncate(len);
        self.kinds.truncate(len);
        self.runs.truncate(len);
        self.rounds.truncate(len);
        self.tokens.truncate(len);
        self.bytes.truncate(len);
    }

    fn slice(&self, range: Range<usize>) -> Self {
        Self {
            offsets: self.offsets[range.clone()].to_vec(),
            kinds: self.kinds[range.clone()].to_vec(),
            runs: self.runs[range.clone()].to_vec(),
            rounds: self.rounds[range.clone()].to_vec(),
            tokens: self.tokens[range.clone()].to_vec(),
            bytes: self.bytes[range].to_vec(),
        }
    }
}

/// The rows of an active transcript and their sums. A row takes 29 bytes, and up to as much again as growing room.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    rows: Columns,
    total: Totals,
    by_run: HashMap<u32, Totals>,
    by_kind: HashMap<u8, Totals>,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Sums over all rows, in constant time.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.total
    }

    /// Sums over a run's rows, in constant time.
    #[must_use]
    pub fn totals_by_run(&self, run: u32) -> Totals {
        self.by_run.get(&run).copied().unwrap_or_default()
    }

    /// Sums over the rows of one type, in constant time.
    #[must_use]
    pub fn totals_by_kind(&self, kind: u8) -> Totals {
        self.by_kind.get(&kind).copied().unwrap_or_default()
    }

    /// Sums over the rows from a position on, in time linear in their number.
    ///
    /// # Errors
    /// [`Error::RangeInvalid`] if the position is past the end.
    pub fn suffix_totals(&self, position: usize) -> Result<Totals> {
        let range = self.range(position, self.len())?;
        Ok(Totals {
            rows: range.len() as u64,
            tokens: self.rows.tokens[range.clone()].iter().map(|&tokens| u64::from(tokens)).sum(),
            bytes: self.rows.bytes[range].iter().sum(),
        })
    }

    /// Position of the row with an offset. Fast where offsets increase along the list, a scan elsewhere.
    #[must_use]
    pub fn position(&self, offset: u64) -> Option<usize> {
        let offsets = &self.rows.offsets;
        match offsets.binary_search(&offset) {
            Ok(at) => Some(at),
            Err(_) => offsets.iter().position(|&known| known == offset),
        }
    }

    /// Adds rows at the end.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if the columns differ in length; nothing is added then.
    pub fn append(&mut self, rows: &Columns) -> Result<()> {
        self.insert(self.len(), rows)
    }

    /// Inserts rows before the one at `position`, or at the end.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] as [`Ledger::append`]; [`Error::RangeInvalid`] if the position is past the end.
    pub fn insert(&mut self, position: usize, rows: &Columns) -> Result<()> {
        rows.check()?;
        let range = self.range(position, position)?;
        for at in 0..rows.len() {
            self.count(&rows.entry(at));
        }
        self.rows.splice(range, rows);
        Ok(())
    }

    /// Removes ranges of positions and, if given, inserts a row before the one that stood at its position.
    ///
    /// Ranges are ascending and do not overlap; all positions are those before the call. Returns the removed sums.
    ///
    /// # Errors
    /// [`Error::RangeInvalid`] if a range or the position is outside the list, or ranges overlap; nothing changes then.
    pub fn replace(&mut self, discard: &[Range<usize>], insert: Option<(usize, Entry)>) -> Result<Totals> {
        let mut last = 0;
        for range in discard {
            self.range(range.start, range.end)?;
            if range.start < last {
                return Err(Error::RangeInvalid { from: range.start, to: range.end, len: self.len() });
            }
            last = range.end;
        }
        let mut place = match &insert {
            Some((position, _)) => self.range(*position, *position)?.start,
            None => 0,
        };
        let before = |range: &Range<usize>| range.end.min(place).saturating_sub(range.start.min(place));
        place -= discard.iter().map(before).sum::<usize>();
        let removed = self.remove(discard);
        if let Some((_, entry)) = insert {
            self.count(&entry);
            let mut row = Columns::default();
            row.push(entry);
            self.rows.splice(place..place, &row);
        }
        Ok(removed)
    }

    /// Copies the rows of a range of positions.
    ///
    /// # Errors
    /// [`Error::RangeInvalid`] if it is not inside the list.
    pub fn slice(&self, from: usize, to: usize) -> Result<Columns> {
        Ok(self.rows.slice(self.range(from, to)?))
    }

    fn remove(&mut self, discard: &[Range<usize>]) -> Totals {
        let mut removed = Totals::default();
        let mut write = discard.first().map_or(self.len(), |range| range.start);
        for (at, range) in discard.iter().enumerate() {
            for position in range.clone() {
                let entry = self.rows.entry(position);
                removed.add(&entry);
                self.uncount(&entry);
            }
            let next = discard.get(at + 1).map_or(self.len(), |next| next.start);
            for position in range.end..next {
                let entry = self.rows.entry(position);
                self.rows.set(write, entry);
                write += 1;
            }
        }
        self.rows.truncate(write);
        removed
    }

    fn count(&mut self, entry: &Entry) {
        self.total.add(entry);
        self.by_run.entry(entry.run).or_default().add(entry);
        self.by_kind.entry(entry.kind).or_default().add(entry);
    }

    fn uncount(&mut self, entry: &Entry) {
        self.total.remove(entry);
        if let Some(totals) = self.by_kind.get_mut(&entry.kind) {
            totals.remove(entry);
        }
        if let Some(totals) = self.by_run.get_mut(&entry.run) {
            totals.remove(entry);
            if totals.rows == 0 {
                self.by_run.remove(&entry.run);
            }
        }
    }

    fn range(&self, from: usize, to: usize) -> Result<Range<usize>> {
        if from > to || to > self.len() {
            return Err(Error::RangeInvalid { from, to, len: self.len() });
        }
        Ok(from..to)
    }
}
