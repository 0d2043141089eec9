//! A cache of the token counts of short pieces, one for each thread and encoding.
//!
//! Direct-mapped. An entry is 16 bytes: up to 15 bytes of the piece, and a byte of its length and count; equal entries
//! are equal pieces, so a hit is exact.

use std::cell::RefCell;

use super::Encoding;
use super::vocab::{Scratch, Vocab};

const SLOT_BITS: u32 = 14;
const LONGEST: usize = 15;
const COUNT_SHIFT: u32 = 124;
const KEY_MASK: u128 = (1 << COUNT_SHIFT) - 1;

thread_local! {
    static CACHES: RefCell<[Cache; 2]> = const { RefCell::new([Cache::new(), Cache::new()]) };
}

/// Runs with this thread's cache of the encoding.
pub fn with<T>(encoding: Encoding, work: impl FnOnce(&mut Cache) -> T) -> T {
    CACHES.with(|caches| {
        let mut caches = caches.borrow_mut();
        let cache = &mut caches[encoding as usize];
        if cache.slots.is_empty() {
            cache.slots = vec![0; 1 << SLOT_BITS];
        }
        work(cache)
    })
}

pub struct Cache {
    slots: Vec<u128>,
    scratch: Scratch,
}

impl Cache {
    const fn new() -> Self {
        Self { slots: Vec::new(), scratch: Scratch::new() }
    }

    /// Number of tokens of the piece `text[start..end]`.
    #[inline]
    pub fn count(&mut self, vocab: &Vocab, text: &[u8], start: usize, end: usize) -> usize {
        let len = end - start;
        if len > LONGEST {
            return vocab.encode_piece(&text[start..end], &mut self.scratch).len();
        }
        let key = load(text, start, len) | (len as u128) << 120;
        let slot = hash(key) & (self.slots.len() - 1);
        let entry = self.slots[slot];
        if entry & KEY_MASK == key {
            return (entry >> COUNT_SHIFT) as usize;
        }
        let count = vocab.encode_piece(&text[start..end], &mut self.scratch).len();
        self.slots[slot] = key | (count as u128) << COUNT_SHIFT;
        count
    }
}

/// Up to 15 bytes as a little-endian number.
#[inline]
fn load(text: &[u8], start: usize, len: usize) -> u128 {
    let wide = match text.get(start..start + 16) {
        Some(bytes) => u128::from_le_bytes(bytes.try_into().unwrap_or([0; 16])),
        None => {
            let mut bytes = [0; 16];
            bytes[..len].copy_from_slice(&text[start..start + len]);
            u128::from_le_bytes(bytes)
        }
    };
    wide & ((1 << (8 * len)) - 1)
}

#[inline]
fn hash(key: u128) -> usize {
    let product =
        u128::from(key as u64 ^ 0x9E37_79B9_7F4A_7C15) * u128::from((key >> 64) as u64 ^ 0xD6E8_FEB8_6659_FD93);
    (product as u64 ^ (product >> 64) as u64) as usize
}
