//! The tables of a vocabulary and the byte-pair encoding of one piece.
//!
//! A sequence of tokens is the encoding of its bytes exactly if every two neighbours are the encoding of theirs. So a
//! piece is encoded from left to right with the longest token that is compatible with the one before, going back where
//! that leads nowhere. Every position is given up at most once, so the work is linear in the piece's length times the
//! longest token's, whatever the bytes are.

use std::sync::OnceLock;

use super::Encoding;
use super::trie::{NONE, Trie};

const EMPTY: u64 = u64::MAX;
const MEMO_BITS: u32 = 14;
const FILTER_BITS: u32 = 21;
/// Bits of a token rank.
const RANK_BITS: u32 = 18;

static CL100K: OnceLock<Vocab> = OnceLock::new();
static O200K: OnceLock<Vocab> = OnceLock::new();

fn cell(encoding: Encoding) -> &'static OnceLock<Vocab> {
    match encoding {
        Encoding::Cl100k => &CL100K,
        Encoding::O200k => &O200K,
    }
}

pub fn get(encoding: Encoding) -> &'static Vocab {
    cell(encoding).get_or_init(|| Vocab::build(&parts(encoding)))
}

pub fn is_built(encoding: Encoding) -> bool {
    cell(encoding).get().is_some()
}

/// What the build script wrote: 256 bytes, then the two parts of every further token.
fn embedded(encoding: Encoding) -> &'static [u8] {
    match encoding {
        Encoding::Cl100k => include_bytes!(concat!(env!("OUT_DIR"), "/cl100k_base.bin")),
        Encoding::O200k => include_bytes!(concat!(env!("OUT_DIR"), "/o200k_base.bin")),
    }
}

/// The two parts of each token from rank 256 on.
fn parts(encoding: Encoding) -> (&'static [u8], Vec<(u32, u32)>) {
    let (bytes, merges) = embedded(encoding).split_at(256);
    let three = |at: &[u8]| u32::from_le_bytes([at[0], at[1], at[2], 0]);
    (bytes, merges.chunks_exact(6).map(|pair| (three(pair), three(&pair[3..]))).collect())
}

pub fn token_bytes(encoding: Encoding) -> Vec<Vec<u8>> {
    let (bytes, merges) = parts(encoding);
    let mut tokens: Vec<Vec<u8>> = bytes.iter().map(|&byte| vec![byte]).collect();
    for (left, right) in merges {
        let token = [&tokens[left as usize][..], &tokens[right as usize][..]].concat();
        tokens.push(token);
    }
    tokens
}

/// Open addressing with linear probing; a slot holds a key above `BITS` bits of value.
struct Table<const BITS: u32> {
    slots: Vec<u64>,
    shift: u32,
}

impl<const BITS: u32> Table<BITS> {
    fn with_room_for(entries: usize) -> Self {
        let size = (entries * 9 / 8).next_power_of_two();
        Self { slots: vec![EMPTY; size], shift: 64 - size.trailing_zeros() }
    }

    #[inline]
    fn start(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    fn insert(&mut self, key: u64, value: u32) {
        let mut at = self.start(key);
        while self.slots[at] != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = key << BITS | u64::from(value);
    }

    #[inline]
    fn get(&self, key: u64) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = self.start(key) & mask;
        loop {
            let slot = self.slots[at];
            if slot >> BITS == key {
                return Some((slot & ((1 << BITS) - 1)) as u32);
            }
            if slot == EMPTY {
                return None;
            }
            at = (at + 1) & mask;
        }
    }
}

/// Room for encoding one piece, kept between pieces.
pub struct Scratch {
    tokens: Vec<u32>,
    given_up: Vec<u64>,
    compatible: Vec<u64>,
}

impl Scratch {
    pub const fn new() -> Self {
        Self { tokens: Vec::new(), given_up: Vec::new(), compatible: Vec::new() }
    }
}

pub struct Vocab {
    /// The two parts of each token; a byte token stands for itself twice.
    split: Vec<(u32, u32)>,
    len: Vec<u8>,
    /// The longest token that is a proper prefix of this one.
    shorter: Vec<u32>,
    pairs: Table<RANK_BITS>,
    /// Bits of the pairs' hashes: most pairs are none, and this answers so from a nearer cache than the table.
    maybe_pairs: Vec<u64>,
    trie: Trie,
    byte_token: [u32; 256],
    /// The token of two bytes, or [`NONE`].
    two_bytes: Vec<u32>,
}

impl Vocab {
    fn build((bytes, merges): &(&[u8], Vec<(u32, u32)>)) -> Self {
        let count = bytes.len() + merges.len();
        let mut split: Vec<(u32, u32)> = (0..256).map(|rank| (rank, rank)).collect();
        let mut byte_token = [0; 256];
        let mut starts = Vec::with_capacity(count + 1);
        let mut text = bytes.to_vec();
        starts.extend(0..=256usize);
        for (rank, &byte) in bytes.iter().enumerate() {
            byte_token[byte as usize] = rank as u32;
        }
        let mut maybe_pairs = vec![0; 1 << (FILTER_BITS - 6)];
        let mut pairs = Table::with_room_for(merges.len());
        for (index, &(left, right)) in merges.iter().enumerate() {
            split.push((left, right));
            pairs.insert(pair_key(left, right), (256 + index) as u32);
            let bit = filter_bit(pair_key(left, right));
            maybe_pairs[bit / 64] |= 1 << (bit % 64);
            for part in [left as usize, right as usize] {
                text.extend_from_within(starts[part]..starts[part + 1]);
            }
            starts.push(text.len());
        }
        let len: Vec<u8> = starts.windows(2).map(|ends| (ends[1] - ends[0]) as u8).collect();
        let mut two_bytes = vec![NONE; 1 << 16];
        for (rank, ends) in starts.windows(2).enumerate() {
            let token = &text[ends[0]..ends[1]];
            if token.len() == 2 {
                two_bytes[(token[0] as usize) << 8 | token[1] as usize] = rank as u32;
            }
        }
        let (trie, shorter) = Trie::build(count, |rank| &text[starts[rank as usize]..starts[rank as usize + 1]]);
        Self { split, len, shorter, pairs, maybe_pairs, trie, byte_token, two_bytes }
    }

    #[inline]
    fn joined(&self, left: u32, right: u32) -> Option<u32> {
        let key = pair_key(left, right);
        let bit = filter_bit(key);
        if self.maybe_pairs[bit / 64] >> (bit % 64) & 1 == 0 {
            return None;
        }
        self.pairs.get(key)
    }

    #[inline]
    fn compatible_memo(&self, left: u32, right: u32, memo: &mut [u64]) -> bool {
        let key = pair_key(left, right);
        let slot = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - MEMO_BITS)) as usize & (memo.len() - 1);
        let entry = memo[slot];
        if entry >> 1 == key {
            return entry & 1 == 1;
        }
        let valid = self.compatible(left, right);
        memo[slot] = key << 1 | u64::from(valid);
        valid
    }

    /// Whether two tokens, each the encoding of its bytes, are together the encoding of theirs.
    ///
    /// Takes the merges that made them back, latest first; they are not if one that joins both sides would have come
    /// before the merge taken back last.
    #[inline]
    fn compatible(&self, mut left: u32, mut right: u32) -> bool {
        let mut limit = NONE;
        loop {
            if self.joined(left, right).is_some_and(|joined| joined < limit) {
                return false;
            }
            if left > right {
                let part = self.split[left as usize].1;
                if part != left {
                    // Of equal merges the left one comes first: on this side the joining merge must be strictly older.
                    limit = left;
                    left = part;
                    continue;
                }
                let part = self.split[right as usize].0;
                if part == right {
                    return true;
                }
                limit = right + 1;
                right = part;
            } else {
                let part = self.split[right as usize].0;
                if part != right {
                    limit = right + 1;
                    right = part;
                    continue;
                }
                let part = self.split[left as usize].1;
                if part == left {
                    return true;
                }
                limit = left;
                left = part;
            }
        }
    }

    pub fn count_short(&self, piece: &[u8]) -> usize {
        let mut tokens = [0u32; 16];
        let mut ranks = [NONE; 16];
        let mut len = piece.len().min(16);
        for (token, &byte) in tokens.iter_mut().zip(piece) {
            *token = self.byte_token[byte as usize];
        }
        for (rank, pair) in ranks.iter_mut().zip(piece.windows(2)) {
            *rank = self.two_bytes[(pair[0] as usize) << 8 | pair[1] as usize];
        }
        loop {
            let mut best = NONE;
            let mut at = 0;
            for i in 0..len - 1 {
                if ranks[i] < best {
                    best = ranks[i];
                    at = i;
                }
            }
            if best == NONE {
                return len;
            }
            tokens[at] = best;
            len -= 1;
            if len == 1 {
                return 1;
            }
            for i in at + 1..len {
                tokens[i] = tokens[i + 1];
                ranks[i] = ranks[i + 1];
            }
            ranks[len - 1] = NONE;
            if at + 1 < len {
                ranks[at] = self.joined(tokens[at], tokens[at + 1]).unwrap_or(NONE);
            }
            if at > 0 {
                ranks[at - 1] = self.joined(tokens[at - 1], tokens[at]).unwrap_or(NONE);
            }
        }
    }

    /// The encoding of a non-empty piece.
    pub fn encode_piece<'a>(&self, piece: &[u8], scratch: &'a mut Scratch) -> &'a [u32] {
        let Scratch { tokens, given_up, compatible } = scratch;
        if compatible.is_empty() {
            compatible.resize(1 << MEMO_BITS, u64::MAX);
        }
        tokens.clear();
        let mut next = self.trie.longest(piece);
        if self.len[next as usize] as usize == piece.len() {
            tokens.push(next);
            return tokens;
        }
        given_up.clear();
        given_up.resize(piece.len() / 64 + 1, 0);
        let mut at = 0;
        loop {
            let end = at + self.len[next as usize] as usize;
            let fits = given_up[end / 64] >> (end % 64) & 1 == 0
                && tokens.last().is_none_or(|&last| self.compatible_memo(last, next, compatible));
            if fits {
                tokens.push(next);
                if end == piece.len() {
                    return tokens;
                }
                at = end;
                next = self.trie.longest(&piece[at..]);
                continue;
            }
            let shorter = self.shorter[next as usize];
            if shorter != NONE {
                next = shorter;
            } else if let Some(last) = tokens.pop() {
                given_up[at / 64] |= 1 << (at % 64);
                at -= self.len[last as usize] as usize;
                next = last;
            } else {
                // Unreachable: single bytes always are a start. Kept total rather than a panic.
                tokens.extend(piece.iter().map(|&byte| self.byte_token[byte as usize]));
                return tokens;
            }
        }
    }

    /// Length in bytes of a token.
    pub fn token_len(&self, token: u32) -> usize {
        self.len[token as usize] as usize
    }
}

#[inline]
fn filter_bit(key: u64) -> usize {
    (key.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> (64 - FILTER_BITS)) as usize
}

#[inline]
fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << RANK_BITS | u64::from(right)
}
