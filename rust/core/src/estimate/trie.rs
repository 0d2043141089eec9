//! A double-array trie of a vocabulary's tokens: one load for each byte of a walk.

use super::vocab::{NONE, RANK_BITS, RANK_MASK};

/// Slots of a block. A node's children lie in one block, at the node's base with the byte's bits flipped into it.
const BLOCK: usize = 256;
/// Blocks that still take new nodes; older ones keep their last holes.
const OPEN_BLOCKS: usize = 24;

/// Bits of a slot's number.
const BASE_BITS: u32 = 22;
/// The label of a free slot, which is no byte.
const EMPTY: u64 = 256;

/// A slot in one word: base, token, label.
///
/// The label is the byte that leads here from its parent. No two nodes share a base, so the byte tells the parent.
#[derive(Clone, Copy)]
struct Slot(u64);

impl Slot {
    const FREE: Self = Self((NONE as u64) << 9 | EMPTY);

    #[inline]
    fn is_labelled(self, byte: u8) -> bool {
        self.0 & 0x1FF == u64::from(byte)
    }

    #[inline]
    fn token(self) -> u32 {
        (self.0 >> 9) as u32 & RANK_MASK
    }

    #[inline]
    fn base(self) -> u32 {
        (self.0 >> (9 + RANK_BITS)) as u32
    }

    fn set_label(&mut self, byte: u8) {
        self.0 = self.0 & !0x1FF | u64::from(byte);
    }

    fn set_token(&mut self, token: u32) {
        self.0 = self.0 & !(u64::from(RANK_MASK) << 9) | u64::from(token) << 9;
    }

    fn set_base(&mut self, base: u32) {
        debug_assert!(base < 1 << BASE_BITS);
        self.0 = self.0 & ((1 << (9 + RANK_BITS)) - 1) | u64::from(base) << (9 + RANK_BITS);
    }
}

pub struct Trie {
    slots: Vec<Slot>,
    root: u32,
}

impl Trie {
    /// Builds the trie of distinct tokens, and for each token the longest other one that it starts with.
    pub fn build<'a>(count: usize, token: impl Fn(u32) -> &'a [u8]) -> (Self, Vec<u32>) {
        let mut order: Vec<(u128, u32)> = (0..count as u32).map(|rank| (head(token(rank)), rank)).collect();
        order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| token(a.1).cmp(token(b.1))));
        let mut shorter = vec![NONE; count];
        let mut builder = Builder::default();
        // The first block stays empty: a leaf's base points there.
        builder.add_block();
        builder.first_open = 1;
        let mut queue = vec![Pending { from: 0, to: count, depth: 0, slot: None, prefix: NONE }];
        let mut root = 0;
        let mut children: Vec<(u8, usize)> = Vec::new();
        while let Some(Pending { mut from, to, depth, slot, mut prefix }) = queue.pop() {
            if let Some((_, rank)) = order[from..to].first().filter(|(_, rank)| token(*rank).len() == depth) {
                shorter[*rank as usize] = prefix;
                prefix = *rank;
                if let Some(slot) = slot {
                    builder.slots[slot as usize].set_token(*rank);
                }
                from += 1;
            }
            if from == to {
                continue;
            }
            children.clear();
            for (at, &(_, rank)) in order.iter().enumerate().take(to).skip(from) {
                let byte = token(rank)[depth];
                if children.last().is_none_or(|&(last, _)| last != byte) {
                    children.push((byte, at));
                }
            }
            let base = builder.place(&children);
            match slot {
                Some(slot) => builder.slots[slot as usize].set_base(base),
                None => root = base,
            }
            for (at, &(byte, from)) in children.iter().enumerate() {
                let to = children.get(at + 1).map_or(to, |&(_, next)| next);
                let slot = Some(base ^ u32::from(byte));
                queue.push(Pending { from, to, depth: depth + 1, slot, prefix });
            }
        }
        (Self { slots: builder.slots, root }, shorter)
    }

    /// The longest token that the bytes start with, or [`NONE`].
    #[inline]
    pub fn longest(&self, bytes: &[u8]) -> u32 {
        let mut base = self.root;
        let mut found = NONE;
        for &byte in bytes {
            let Some(slot) = self.slots.get((base ^ u32::from(byte)) as usize) else { break };
            if !slot.is_labelled(byte) {
                break;
            }
            base = slot.base();
            if slot.token() != NONE {
                found = slot.token();
            }
        }
        found
    }
}

struct Pending {
    from: usize,
    to: usize,
    depth: usize,
    /// Where the node stands; the root stands nowhere.
    slot: Option<u32>,
    prefix: u32,
}

/// The first 16 bytes, so that comparing the numbers compares the bytes.
fn head(token: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let len = token.len().min(16);
    bytes[..len].copy_from_slice(&token[..len]);
    u128::from_be_bytes(bytes)
}

#[derive(Default)]
struct Builder {
    slots: Vec<Slot>,
    /// For each block, which slots are free and which are some node's base: four words of 64 bits each.
    free: Vec<[u64; 4]>,
    bases: Vec<[u64; 4]>,
    first_open: usize,
}

impl Builder {
    fn add_block(&mut self) {
        self.slots.resize(self.slots.len() + BLOCK, Slot::FREE);
        self.free.push([u64::MAX; 4]);
        self.bases.push([0; 4]);
    }

    /// Takes slots for the children of a node and returns the node's base.
    fn place(&mut self, children: &[(u8, usize)]) -> u32 {
        let (block, low) = self.find(children);
        for &(byte, _) in children {
            let at = low ^ byte;
            self.free[block][at as usize / 64] &= !(1 << (at % 64));
            self.slots[block * BLOCK + at as usize].set_label(byte);
        }
        self.bases[block][low as usize / 64] |= 1 << (low % 64);
        while self.first_open < self.free.len()
            && (self.free[self.first_open] == [0; 4] || self.free.len() - self.first_open > OPEN_BLOCKS)
        {
            self.first_open += 1;
        }
        (block * BLOCK) as u32 + u32::from(low)
    }

    fn find(&mut self, children: &[(u8, usize)]) -> (usize, u8) {
        let first = children[0].0;
        for block in self.first_open..self.free.len() {
            let free = &self.free[block];
            let bases = &self.bases[block];
            for (word, &bits) in free.iter().enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    let at = (word * 64) as u8 + bits.trailing_zeros() as u8;
                    bits &= bits - 1;
                    let low = at ^ first;
                    let fits = bases[low as usize / 64] >> (low % 64) & 1 == 0
                        && children[1..].iter().all(|&(byte, _)| {
                            let at = low ^ byte;
                            free[at as usize / 64] >> (at % 64) & 1 == 1
                        });
                    if fits {
                        return (block, low);
                    }
                }
            }
        }
        self.add_block();
        (self.free.len() - 1, 0)
    }
}
