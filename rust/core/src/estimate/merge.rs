//! The byte-pair encoding of one piece, in three ways that agree.

use super::vocab::{NONE, Vocab, pair_key};

/// Bits of the memo of compatible pairs: 128 KiB.
const MEMO_BITS: u32 = 14;
/// Runs of equal bytes up to which a long piece is merged run by run.
const MOST_RUNS: usize = 16;

/// Room for encoding pieces, and a memo of compatible pairs, kept from piece to piece.
pub struct Scratch {
    tokens: Vec<u32>,
    given_up: Vec<u64>,
    compatible: Vec<u64>,
}

impl Scratch {
    pub fn new() -> Self {
        Self { tokens: Vec::new(), given_up: Vec::new(), compatible: vec![u64::MAX; 1 << MEMO_BITS] }
    }
}

/// Number of tokens of a piece of 1 to 16 bytes, by merging the lowest pair until none is left.
pub fn count_short(vocab: &Vocab, piece: &[u8]) -> usize {
    let mut tokens = [0; 16];
    let mut merged = [NONE; 16];
    let mut len = piece.len();
    for (token, &byte) in tokens.iter_mut().zip(piece) {
        *token = vocab.byte(byte);
    }
    for (merged, pair) in merged.iter_mut().zip(piece.windows(2)) {
        *merged = vocab.two_bytes(pair[0], pair[1]);
    }
    while len > 1 {
        let mut best = NONE;
        let mut at = 0;
        for (place, &rank) in merged[..len - 1].iter().enumerate() {
            if rank < best {
                (best, at) = (rank, place);
            }
        }
        if best == NONE {
            break;
        }
        tokens[at] = best;
        len -= 1;
        tokens.copy_within(at + 2..=len, at + 1);
        merged.copy_within(at + 1..=len, at);
        if at + 1 < len {
            merged[at] = vocab.joined(best, tokens[at + 1]).unwrap_or(NONE);
        }
        if at > 0 {
            merged[at - 1] = vocab.joined(tokens[at - 1], best).unwrap_or(NONE);
        }
    }
    len
}

/// Number of tokens of a piece of any length.
pub fn count_long(vocab: &Vocab, piece: &[u8], scratch: &mut Scratch) -> usize {
    let changes = piece.windows(2).map(|pair| usize::from(pair[0] != pair[1])).sum::<usize>();
    if changes < MOST_RUNS && changes * 4 < piece.len() {
        return count_runs(vocab, piece);
    }
    encode(vocab, piece, scratch).len()
}

/// Merges runs of equal tokens at once: separators, indentation, padding. A run of k becomes k/2 and at most a single
/// one; what a merge makes merges later than it, so nothing can come between.
fn count_runs(vocab: &Vocab, piece: &[u8]) -> usize {
    let mut runs: Vec<(u32, usize)> =
        piece.chunk_by(|a, b| a == b).map(|run| (vocab.byte(run[0]), run.len())).collect();
    loop {
        let within = |at: usize| (runs[at].1 > 1).then(|| vocab.joined(runs[at].0, runs[at].0)).flatten();
        let across = |at: usize| vocab.joined(runs[at].0, runs.get(at + 1)?.0);
        let merges = (0..runs.len()).flat_map(|at| [(within(at), at, true), (across(at), at, false)]);
        let lowest = merges.filter_map(|(token, at, inside)| Some((token?, at, inside))).min();
        let Some((token, at, inside)) = lowest else { break };
        let (left, many) = runs[at];
        if inside {
            runs.splice(at..=at, [(token, many / 2), (left, many % 2)]);
        } else {
            let (right, after) = runs[at + 1];
            runs.splice(at..=at + 1, [(left, many - 1), (token, 1), (right, after - 1)]);
        }
        runs.retain(|run| run.1 > 0);
        runs.dedup_by(|next, run| {
            let same = next.0 == run.0;
            run.1 += if same { next.1 } else { 0 };
            same
        });
    }
    runs.iter().map(|run| run.1).sum()
}

/// The encoding of a piece that is not empty.
///
/// A sequence of tokens is the encoding of its bytes exactly if every two neighbours are the encoding of theirs. So the
/// longest token that is compatible with the one before comes next, going back where that leads nowhere. Every position
/// is given up at most once: the work is linear in the piece's length times the longest token's, whatever the bytes.
pub fn encode<'a>(vocab: &Vocab, piece: &[u8], scratch: &'a mut Scratch) -> &'a [u32] {
    let Scratch { tokens, given_up, compatible: memo } = scratch;
    tokens.clear();
    given_up.clear();
    given_up.resize(piece.len() / 64 + 1, 0);
    let mut at = 0;
    let mut next = vocab.longest(piece);
    loop {
        let end = at + vocab.token_len(next);
        let fits = given_up[end / 64] >> (end % 64) & 1 == 0
            && tokens.last().is_none_or(|&last| compatible(vocab, last, next, memo));
        if fits {
            tokens.push(next);
            if end == piece.len() {
                return tokens;
            }
            at = end;
            next = vocab.longest(&piece[at..]);
            continue;
        }
        let shorter = vocab.shorter(next);
        if shorter != NONE {
            next = shorter;
        } else if let Some(last) = tokens.pop() {
            given_up[at / 64] |= 1 << (at % 64);
            at -= vocab.token_len(last);
            next = last;
        } else {
            // Every piece has an encoding, so this is not reached; bytes are a total answer where a panic is none.
            tokens.extend(piece.iter().map(|&byte| vocab.byte(byte)));
            return tokens;
        }
    }
}

#[inline]
fn compatible(vocab: &Vocab, left: u32, right: u32, memo: &mut [u64]) -> bool {
    let key = pair_key(left, right);
    let slot = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - MEMO_BITS)) as usize & (memo.len() - 1);
    let entry = memo[slot];
    if entry >> 1 == key {
        return entry & 1 == 1;
    }
    let answer = is_encoding(vocab, left, right);
    memo[slot] = key << 1 | u64::from(answer);
    answer
}

/// Whether two tokens are the encoding of their bytes.
///
/// Takes the merges that made them back, latest first. They are not if the parts that then face each other would have
/// merged before the merge that was taken back last.
fn is_encoding(vocab: &Vocab, mut left: u32, mut right: u32) -> bool {
    let mut limit = NONE;
    loop {
        if vocab.joined(left, right).is_some_and(|joined| joined < limit) {
            return false;
        }
        let left_part = vocab.parts(left).1;
        let right_part = vocab.parts(right).0;
        if left_part != left && (left > right || right_part == right) {
            limit = left;
            left = left_part;
        } else if right_part != right {
            // Of merges of one rank the left one comes first: the joining one wins a tie against the right side.
            limit = right + 1;
            right = right_part;
        } else {
            return true;
        }
    }
}
