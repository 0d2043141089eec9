//! The common case of the splitter: a word of ASCII letters that ends within 8 bytes, found without a loop.
//!
//! Windows of 16 bytes find more words so, and were slower on all but cl100k prose: their shifts cost more.
//!
//! Every function answers `None` where the general splitter has to look.

/// The high bit of every byte.
const HIGH: u64 = 0x8080_8080_8080_8080;
const ONES: u64 = 0x0101_0101_0101_0101;

/// The high bit of every byte that is ASCII and lies in `first..=last`.
#[inline]
fn in_range(bytes: u64, first: u8, last: u8) -> u64 {
    let low = bytes & !HIGH;
    let from = low + ONES * u64::from(0x80 - first);
    let past = low + ONES * u64::from(0x7F - last);
    from & !past & !bytes & HIGH
}

/// End of an o200k word: an optional character, capitals, small letters, then an ASCII character that is no apostrophe.
#[inline]
pub fn capitals_then_small(text: &[u8], at: usize) -> Option<usize> {
    let window = u64::from_le_bytes(text.get(at..at + 8)?.try_into().ok()?);
    let lower = in_range(window, b'a', b'z');
    let upper = in_range(window, b'A', b'Z');
    let first = window as u8;
    let skip = u32::from((lower | upper) as u8 & 0x80 == 0);
    if skip == 1 && (first >= 0x80 || first.is_ascii_digit() || matches!(first, b'\r' | b'\n')) {
        return None;
    }
    let capitals = (!upper & HIGH) >> (8 * skip);
    let capitals = capitals.trailing_zeros() / 8;
    let from = skip + capitals;
    if from >= 8 {
        return None;
    }
    let small = ((!lower & HIGH) >> (8 * from)).trailing_zeros() / 8;
    let end = from + small;
    if end >= 8 || end == skip {
        return None;
    }
    let next = (window >> (8 * end)) as u8;
    if next >= 0x80 || next == b'\'' {
        return None;
    }
    Some(at + end as usize)
}

/// End of a cl100k word: an optional character, letters, then an ASCII character.
#[inline]
pub fn letters(text: &[u8], at: usize) -> Option<usize> {
    let window = u64::from_le_bytes(text.get(at..at + 8)?.try_into().ok()?);
    // With that bit a capital is its small letter, and nothing else becomes a letter.
    let letters = in_range(window | (ONES * 0x20), b'a', b'z');
    let first = window as u8;
    let skip = u32::from(letters as u8 & 0x80 == 0);
    if skip == 1 && (first >= 0x80 || first.is_ascii_digit() || matches!(first, b'\r' | b'\n' | b'\'')) {
        return None;
    }
    let end = skip + ((!letters & HIGH) >> (8 * skip)).trailing_zeros() / 8;
    if end >= 8 || end == skip || (window >> (8 * end)) as u8 >= 0x80 {
        return None;
    }
    Some(at + end as usize)
}
