//! The ledger against a plain list.

#![allow(clippy::single_range_in_vec_init, reason = "a list of one range is meant")]

use foldline_core::ledger::{Columns, Entry, Ledger, Totals};
use proptest::prelude::*;

fn columns(entries: &[Entry]) -> Columns {
    let mut columns = Columns::default();
    entries.iter().for_each(|entry| columns.push(*entry));
    columns
}

fn sum(entries: &[Entry]) -> Totals {
    Totals {
        rows: entries.len() as u64,
        tokens: entries.iter().map(|entry| u64::from(entry.tokens)).sum(),
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, Vec<Entry>),
    Replace(Vec<bool>, Option<(usize, Entry)>),
}

fn entry() -> impl Strategy<Value = Entry> {
    (any::<u16>(), 1u8..9, 0u32..4, 0u32..5, any::<u32>(), 0u64..1 << 40).prop_map(
        |(offset, kind, run, round, tokens, bytes)| Entry {
            offset: u64::from(offset),
            kind,
            run,
            round,
            tokens,
            bytes,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<usize>(), prop::collection::vec(entry(), 0..6)).prop_map(|(at, rows)| Step::Insert(at, rows)),
        (prop::collection::vec(any::<bool>(), 30), prop::option::of((any::<usize>(), entry())))
            .prop_map(|(marks, row)| Step::Replace(marks, row)),
    ]
}

proptest! {
    #[test]
    fn a_ledger_is_a_list_with_sums(steps in prop::collection::vec(step(), 1..25)) {
        let mut ledger = Ledger::new();
        let mut list: Vec<Entry> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(at, rows) => {
                    let at = at % (list.len() + 1);
                    ledger.insert(at, &columns(&rows)).unwrap();
                    list.splice(at..at, rows);
                }
                Step::Replace(marks, row) => {
                    let gone: Vec<usize> = (0..list.len()).filter(|at| marks[at % marks.len()]).collect();
                    let ranges: Vec<_> = gone.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1).collect();
                    let row = row.map(|(at, entry)| (at % (list.len() + 1), entry));
                    let removed = ledger.replace(&ranges, row).unwrap();
                    let discarded: Vec<Entry> = gone.iter().map(|&at| list[at]).collect();
                    prop_assert_eq!(removed, sum(&discarded));
                    let mut next = Vec::new();
                    for at in 0..=list.len() {
                        next.extend(row.filter(|(place, _)| *place == at).map(|(_, entry)| entry));
                        next.extend(list.get(at).filter(|_| !gone.contains(&at)));
                    }
                    list = next;
                }
            }
            prop_assert_eq!(ledger.slice(0, ledger.len()).unwrap(), columns(&list));
            prop_assert_eq!(ledger.totals(), sum(&list));
            for run in 0..4 {
                let rows: Vec<Entry> = list.iter().copied().filter(|entry| entry.run == run).collect();
                prop_assert_eq!(ledger.totals_by_run(run), sum(&rows));
            }
            for kind in 1..9 {
                let rows: Vec<Entry> = list.iter().copied().filter(|entry| entry.kind == kind).collect();
                prop_assert_eq!(ledger.totals_by_kind(kind), sum(&rows));
            }
            for at in 0..=list.len() {
                prop_assert_eq!(ledger.suffix_totals(at).unwrap(), sum(&list[at..]));
            }
            for entry in &list {
                let at = ledger.position(entry.offset).unwrap();
                prop_assert_eq!(list[at].offset, entry.offset);
            }
            prop_assert_eq!(ledger.position(1 << 20), None);
        }
    }
}

#[test]
fn a_summary_stands_in_an_old_place_with_a_new_offset() {
    let mut ledger = Ledger::new();
    let rows: Vec<Entry> = (1..=5).map(|offset| Entry { offset, tokens: 10, bytes: 100, ..Entry::default() }).collect();
    ledger.append(&columns(&rows)).unwrap();
    ledger.replace(&[1..4], Some((1, Entry { offset: 6, tokens: 3, bytes: 30, ..Entry::default() }))).unwrap();
    assert_eq!(ledger.slice(0, 3).unwrap().offsets, [1, 6, 5]);
    assert_eq!((ledger.position(6), ledger.position(5), ledger.position(3)), (Some(1), Some(2), None));
    assert_eq!(ledger.totals(), Totals { rows: 3, tokens: 23, bytes: 230 });
}

#[test]
fn bad_calls_change_nothing() {
    let mut ledger = Ledger::new();
    ledger.append(&columns(&[Entry::default(); 3])).unwrap();
    let mut uneven = columns(&[Entry::default(); 2]);
    uneven.bytes.pop();
    assert_eq!(ledger.append(&uneven).unwrap_err().reason(), "LENGTH_MISMATCH");
    assert_eq!(ledger.insert(4, &Columns::default()).unwrap_err().reason(), "RANGE_INVALID");
    for ranges in [vec![2..4], vec![0..2, 1..3], vec![1..2, 0..1]] {
        assert_eq!(ledger.replace(&ranges, None).unwrap_err().reason(), "RANGE_INVALID");
    }
    assert_eq!(ledger.replace(&[], Some((4, Entry::default()))).unwrap_err().reason(), "RANGE_INVALID");
    assert_eq!(ledger.slice(2, 1).unwrap_err().reason(), "RANGE_INVALID");
    assert_eq!(ledger.suffix_totals(4).unwrap_err().reason(), "RANGE_INVALID");
    assert_eq!((ledger.len(), ledger.totals().rows), (3, 3));
}
