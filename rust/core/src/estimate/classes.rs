//! Character classes of Unicode 16, the version of the reference tokenizer's regex engine.

/// `\p{Lu}` or `\p{Lt}`.
pub const UPPER: u8 = 1;
/// `\p{Ll}`.
pub const LOWER: u8 = 2;
/// `\p{Lm}` or `\p{Lo}`: letters without case.
pub const CASELESS: u8 = 4;
/// `\p{M}`.
pub const MARK: u8 = 8;
/// `\p{N}`.
pub const NUMBER: u8 = 16;
/// `\s`.
pub const SPACE: u8 = 32;
/// `\r` or `\n`; always with [`SPACE`].
pub const NEWLINE: u8 = 64;
/// `\p{L}`.
pub const LETTER: u8 = UPPER | LOWER | CASELESS;

static INDEX: &[u8; 0x1100] = include_bytes!(concat!(env!("OUT_DIR"), "/class_index.bin"));
const BLOCKS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/class_blocks.bin"));

/// The first half of the first block, at hand without the second look-up.
static ASCII: [u8; 128] = {
    let mut ascii = [0; 128];
    let mut at = 0;
    while at < 128 {
        ascii[at] = BLOCKS[at];
        at += 1;
    }
    ascii
};

/// Class bits of the character that starts at `at`, and its length in bytes; `(0, 0)` at the end of the text.
///
/// `text` is UTF-8 and `at` a character boundary of it.
#[inline(always)]
pub fn class_at(text: &[u8], at: usize) -> (u8, usize) {
    match text.get(at) {
        None => (0, 0),
        Some(&byte) if byte < 0x80 => (ASCII[byte as usize], 1),
        Some(&byte) => wide_class(text, at, byte),
    }
}

#[inline(never)]
fn wide_class(text: &[u8], at: usize, first: u8) -> (u8, usize) {
    let tail = |n: usize| u32::from(text.get(at + n).copied().unwrap_or(0) & 0x3F);
    let first = u32::from(first);
    let (code, len) = if first < 0xE0 {
        ((first & 0x1F) << 6 | tail(1), 2)
    } else if first < 0xF0 {
        ((first & 0x0F) << 12 | tail(1) << 6 | tail(2), 3)
    } else {
        ((first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4)
    };
    let block = INDEX.get((code >> 8) as usize).copied().unwrap_or(0) as usize;
    (BLOCKS[block << 8 | (code & 0xFF) as usize], len)
}
