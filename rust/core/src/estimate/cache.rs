//! Counting with a cache of the token counts of short pieces.
//!
//! Two-way set-associative. An entry is 16 bytes: up to 15 bytes of the piece, and a byte of its length and count;
//! equal entries are equal pieces, so a hit is exact.

use std::sync::{Mutex, PoisonError};

use super::Encoding;
use super::merge::{Scratch, count_long, count_short};
use super::vocab::Vocab;

/// 2^14 sets of two entries: 512 KiB, about what a core's second-level cache holds.
const SET_BITS: u32 = 14;
const LONGEST: usize = 15;
const LENGTH_SHIFT: u32 = 120;
const COUNT_SHIFT: u32 = 124;
const KEY_MASK: u128 = (1 << COUNT_SHIFT) - 1;
/// Caches kept for the next calls. More calls at a time than this start with a cold one.
const KEPT: usize = 8;

/// Caches that no call uses at the moment. Not thread-locals: a server's many threads share the few warm ones.
static IDLE: [Mutex<Vec<Cache>>; 2] = [const { Mutex::new(Vec::new()) }; 2];

struct Cache {
    sets: Vec<[u128; 2]>,
    scratch: Scratch,
}

/// Calls `each(end, tokens)` for every piece that `split` finds: it returns the end of the piece that starts at a position.
#[inline]
pub fn walk(
    encoding: Encoding,
    vocab: &Vocab,
    text: &[u8],
    split: impl Fn(&[u8], usize) -> usize,
    each: impl FnMut(usize, usize),
) {
    let idle = &IDLE[encoding as usize];
    let cache = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let mut cache = cache.unwrap_or_else(|| Cache { sets: vec![[0; 2]; 1 << SET_BITS], scratch: Scratch::new() });
    cache.walk(vocab, text, split, each);
    let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
    if idle.len() < KEPT {
        idle.push(cache);
    }
}

impl Cache {
    #[inline]
    fn walk(
        &mut self,
        vocab: &Vocab,
        text: &[u8],
        split: impl Fn(&[u8], usize) -> usize,
        mut each: impl FnMut(usize, usize),
    ) {
        let mut at = 0;
        while at < text.len() {
            let end = split(text, at);
            let tokens = if end - at > LONGEST {
                count_long(vocab, &text[at..end], &mut self.scratch)
            } else {
                self.short(vocab, key(text, at, end - at))
            };
            each(end, tokens);
            at = end;
        }
    }

    #[inline]
    fn short(&mut self, vocab: &Vocab, key: u128) -> usize {
        let set = hash(key) & (self.sets.len() - 1);
        let entry = self.sets[set][0];
        let entry = if entry & KEY_MASK == key { entry } else { self.second(vocab, key, set) };
        (entry >> COUNT_SHIFT) as usize
    }

    /// The set's second entry moves up if it is the one; else a new one takes its place and moves up.
    #[inline(never)]
    fn second(&mut self, vocab: &Vocab, key: u128, set: usize) -> u128 {
        let [first, second] = &mut self.sets[set];
        std::mem::swap(first, second);
        if *first & KEY_MASK != key {
            let bytes = key.to_le_bytes();
            let count = count_short(vocab, &bytes[..(key >> LENGTH_SHIFT) as usize]);
            *first = key | (count as u128) << COUNT_SHIFT;
        }
        *first
    }
}

/// A piece of up to 15 bytes and its length as a number.
#[inline]
fn key(text: &[u8], start: usize, len: usize) -> u128 {
    let window = match text.get(start..start + 16).and_then(|bytes| bytes.try_into().ok()) {
        Some(bytes) => bytes,
        None => {
            let mut bytes = [0; 16];
            bytes[..len].copy_from_slice(&text[start..start + len]);
            bytes
        }
    };
    u128::from_le_bytes(window) & ((1 << (8 * len)) - 1) | (len as u128) << LENGTH_SHIFT
}

#[inline]
fn hash(key: u128) -> usize {
    let low = u128::from(key as u64 ^ 0x9E37_79B9_7F4A_7C15);
    let high = u128::from((key >> 64) as u64 ^ 0xD6E8_FEB8_6659_FD93);
    let product = low * high;
    (product as u64 ^ (product >> 64) as u64) as usize
}
