//! The tables of a vocabulary, built at first use from what the build script embedded.

use std::sync::OnceLock;

use super::Encoding;
use super::trie::Trie;

/// A free slot of a [`Pairs`] table.
const EMPTY: u64 = u64::MAX;
/// Bits of a token's rank.
pub const RANK_BITS: u32 = 18;
pub const RANK_MASK: u32 = (1 << RANK_BITS) - 1;
/// A rank that is no token's.
pub const NONE: u32 = RANK_MASK;
/// 2^21 bits: 256 KiB, a fifth of them set.
const FILTER_BITS: u32 = 21;

static CL100K: OnceLock<Vocab> = OnceLock::new();
static O200K: OnceLock<Vocab> = OnceLock::new();

fn cell(encoding: Encoding) -> &'static OnceLock<Vocab> {
    match encoding {
        Encoding::Cl100k => &CL100K,
        Encoding::O200k => &O200K,
    }
}

pub fn get(encoding: Encoding) -> &'static Vocab {
    cell(encoding).get_or_init(|| {
        let (bytes, merges) = parts(encoding);
        Vocab::build(bytes, &merges)
    })
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

/// A pair of tokens as one number.
#[inline]
pub fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << RANK_BITS | u64::from(right)
}

/// Which pairs of tokens merge, and into what.
///
/// A token is merged from one pair only: the last two pieces that merging its own bytes leaves. Two neighbours whose
/// bytes together are a token are always that pair, since merging would otherwise have crossed them before.
struct Pairs {
    /// Open addressing with linear probing; a slot holds a pair above the merged token.
    slots: Vec<u64>,
    /// Bits of the pairs' hashes: most pairs are none, and this says so from a nearer cache than the slots.
    filter: Vec<u64>,
}

impl Pairs {
    fn with_room_for(entries: usize) -> Self {
        let size = (entries * 9 / 8).next_power_of_two();
        Self { slots: vec![EMPTY; size], filter: vec![0; 1 << (FILTER_BITS - 6)] }
    }

    #[inline]
    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// Two bits of one word.
    #[inline]
    fn bits(hash: u64) -> (usize, u64) {
        let word = hash >> (64 - (FILTER_BITS - 6));
        (word as usize, 1 << (hash >> 40 & 63) | 1 << (hash >> 34 & 63))
    }

    #[inline]
    fn first_slot(&self, hash: u64) -> usize {
        (hash >> 24) as usize & (self.slots.len() - 1)
    }

    fn insert(&mut self, key: u64, token: u32) {
        let hash = Self::hash(key);
        let (word, bits) = Self::bits(hash);
        self.filter[word] |= bits;
        let mut at = self.first_slot(hash);
        while self.slots[at] != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = key << RANK_BITS | u64::from(token);
    }

    #[inline]
    fn get(&self, key: u64) -> Option<u32> {
        let hash = Self::hash(key);
        let (word, bits) = Self::bits(hash);
        if self.filter[word] & bits != bits {
            return None;
        }
        let mut at = self.first_slot(hash);
        loop {
            let slot = self.slots[at];
            if slot >> RANK_BITS == key {
                return Some((slot & ((1 << RANK_BITS) - 1)) as u32);
            }
            if slot == EMPTY {
                return None;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

/// What encoding asks about a token, in one word: its two parts, the longest other token it starts with, its length.
#[derive(Clone, Copy)]
struct Token(u64);

impl Token {
    fn new((left, right): (u32, u32), shorter: u32, len: usize) -> Self {
        let [left, right, shorter] = [left, right, shorter].map(u64::from);
        Self(left | right << RANK_BITS | shorter << (2 * RANK_BITS) | (len as u64) << (3 * RANK_BITS))
    }

    #[inline]
    fn rank(self, place: u32) -> u32 {
        (self.0 >> (place * RANK_BITS)) as u32 & RANK_MASK
    }
}

/// The tables of one vocabulary. Tokens go by their rank; merging goes by rank too, lowest first.
pub struct Vocab {
    tokens: Vec<Token>,
    pairs: Pairs,
    trie: Trie,
    byte_token: [u32; 256],
    two_bytes: Vec<u32>,
}

impl Vocab {
    fn build(bytes: &[u8], merges: &[(u32, u32)]) -> Self {
        let mut byte_token = [0; 256];
        for (rank, &byte) in bytes.iter().enumerate() {
            byte_token[usize::from(byte)] = rank as u32;
        }
        let mut pairs = Pairs::with_room_for(merges.len());
        let mut text = bytes.to_vec();
        let mut starts: Vec<usize> = (0..=bytes.len()).collect();
        for (index, &(left, right)) in merges.iter().enumerate() {
            pairs.insert(pair_key(left, right), (bytes.len() + index) as u32);
            for part in [left as usize, right as usize] {
                text.extend_from_within(starts[part]..starts[part + 1]);
            }
            starts.push(text.len());
        }
        let bytes_of = |rank: u32| &text[starts[rank as usize]..starts[rank as usize + 1]];
        let count = bytes.len() + merges.len();
        let (trie, shorter) = Trie::build(count, bytes_of);
        let mut two_bytes = vec![NONE; 1 << 16];
        let mut tokens = Vec::with_capacity(count);
        for (rank, &shorter) in (0..).zip(&shorter) {
            let token = bytes_of(rank);
            if let [first, second] = *token {
                two_bytes[usize::from(first) << 8 | usize::from(second)] = rank;
            }
            let merged = (rank as usize).checked_sub(bytes.len());
            let parts = merged.map_or((rank, rank), |index| merges[index]);
            tokens.push(Token::new(parts, shorter, token.len()));
        }
        Self { tokens, pairs, trie, byte_token, two_bytes }
    }

    /// The token that two neighbours merge into.
    #[inline]
    pub fn joined(&self, left: u32, right: u32) -> Option<u32> {
        self.pairs.get(pair_key(left, right))
    }

    /// The token of two bytes, or [`NONE`].
    #[inline]
    pub fn two_bytes(&self, first: u8, second: u8) -> u32 {
        self.two_bytes[usize::from(first) << 8 | usize::from(second)]
    }

    /// The token of a byte.
    #[inline]
    pub fn byte(&self, byte: u8) -> u32 {
        self.byte_token[usize::from(byte)]
    }

    /// Length in bytes of a token.
    #[inline]
    pub fn token_len(&self, token: u32) -> usize {
        (self.tokens[token as usize].0 >> (3 * RANK_BITS)) as usize
    }

    /// The longest other token that this one starts with, or [`NONE`].
    #[inline]
    pub fn shorter(&self, token: u32) -> u32 {
        self.tokens[token as usize].rank(2)
    }

    /// The two tokens that this one is merged from; a byte's token is itself twice.
    #[inline]
    pub fn parts(&self, token: u32) -> (u32, u32) {
        let token = self.tokens[token as usize];
        (token.rank(0), token.rank(1))
    }

    /// The longest token that the bytes start with; there are some.
    #[inline]
    pub fn longest(&self, bytes: &[u8]) -> u32 {
        self.trie.longest(bytes)
    }
}
