use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldline_core::ledger::{self, Columns, Entry, Totals};
use pyo3::prelude::*;

use crate::error::Result;

type Sums = (u64, u64, u64);
type ColumnLists = (Vec<u64>, Vec<u8>, Vec<u32>, Vec<u32>, Vec<u32>, Vec<u64>);

/// The rows of an active transcript as columns, in list order, with their sums kept.
///
/// Columns are offset, kind, run, round, tokens, bytes. Safe to share between threads: each call holds a lock.
#[pyclass(frozen, module = "foldline._core")]
#[derive(Default)]
pub struct Ledger(Mutex<ledger::Ledger>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, ledger::Ledger> {
        // No call can panic between two changes that belong together, so a poisoned ledger is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Ledger {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    /// Adds rows at the end.
    fn append(
        &self,
        offsets: Vec<u64>,
        kinds: Vec<u8>,
        runs: Vec<u32>,
        rounds: Vec<u32>,
        tokens: Vec<u32>,
        bytes: Vec<u64>,
    ) -> Result<()> {
        Ok(self.lock().append(&Columns { offsets, kinds, runs, rounds, tokens, bytes })?)
    }

    /// Inserts rows before the one at `position`.
    #[expect(clippy::too_many_arguments, reason = "one argument a column")]
    fn insert(
        &self,
        position: usize,
        offsets: Vec<u64>,
        kinds: Vec<u8>,
        runs: Vec<u32>,
        rounds: Vec<u32>,
        tokens: Vec<u32>,
        bytes: Vec<u64>,
    ) -> Result<()> {
        Ok(self.lock().insert(position, &Columns { offsets, kinds, runs, rounds, tokens, bytes })?)
    }

    /// Removes ranges of positions and inserts one row before the row that stood at `position`.
    ///
    /// `discard` holds half-open ranges, ascending, without overlap. `row` is (offset, kind, run, round, tokens, bytes).
    /// All positions are those before the call. Returns the removed (rows, tokens, bytes).
    #[pyo3(signature = (discard, position=None, row=None))]
    fn replace(
        &self,
        discard: Vec<(usize, usize)>,
        position: Option<usize>,
        row: Option<(u64, u8, u32, u32, u32, u64)>,
    ) -> Result<Sums> {
        let discard: Vec<Range<usize>> = discard.into_iter().map(|(from, to)| from..to).collect();
        let mut ledger = self.lock();
        let insert = row.map(|(offset, kind, run, round, tokens, bytes)| {
            (position.unwrap_or(ledger.len()), Entry { offset, kind, run, round, tokens, bytes })
        });
        Ok(sums(ledger.replace(&discard, insert)?))
    }

    /// Tokens of all rows.
    fn total_tokens(&self) -> u64 {
        self.lock().totals().tokens
    }

    /// Bytes of all rows.
    fn total_bytes(&self) -> u64 {
        self.lock().totals().bytes
    }

    /// (rows, tokens, bytes) of a run.
    fn totals_by_run(&self, run: u32) -> Sums {
        sums(self.lock().totals_by_run(run))
    }

    /// (rows, tokens, bytes) of a row type.
    fn totals_by_kind(&self, kind: u8) -> Sums {
        sums(self.lock().totals_by_kind(kind))
    }

    /// (rows, tokens, bytes) from a position on.
    fn suffix_totals(&self, position: usize) -> Result<Sums> {
        Ok(sums(self.lock().suffix_totals(position)?))
    }

    /// Position of the row with this offset, or None.
    fn position(&self, offset: u64) -> Option<usize> {
        self.lock().position(offset)
    }

    /// The columns of a range of positions, as lists; kinds as bytes.
    #[pyo3(signature = (start=0, stop=None))]
    fn slice(&self, start: usize, stop: Option<usize>) -> Result<ColumnLists> {
        let ledger = self.lock();
        let rows = ledger.slice(start, stop.unwrap_or(ledger.len()))?;
        Ok((rows.offsets, rows.kinds, rows.runs, rows.rounds, rows.tokens, rows.bytes))
    }
}

fn sums(totals: Totals) -> Sums {
    (totals.rows, totals.tokens, totals.bytes)
}
