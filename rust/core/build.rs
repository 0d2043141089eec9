//! Derives what the counter embeds: the character classes and, for each vocabulary, how every token is merged.

use std::collections::HashMap;
use std::path::Path;
use std::{env, fs};

use regex_syntax::hir::{Class, HirKind};

/// Bits of a character class, as `estimate/classes.rs` reads them. A letter has exactly one of the first three.
const CLASSES: [(&str, u8); 6] =
    [(r"[\p{Lu}\p{Lt}]", 1), (r"\p{Ll}", 2), (r"[\p{Lm}\p{Lo}]", 4), (r"\p{M}", 8), (r"\p{N}", 16), (r"\s", 32)];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    write_classes(out);
    write_merges(out, "cl100k_base", &tiktoken_rs::cl100k_base().expect("the package reads its own data"));
    write_merges(out, "o200k_base", &tiktoken_rs::o200k_base().expect("the package reads its own data"));
}

/// Writes a two-level table: a block number for each 256 code points, then the distinct blocks.
fn write_classes(out: &Path) {
    let mut flat = vec![0u8; 0x11_0000];
    for (pattern, bit) in CLASSES {
        let hir = regex_syntax::parse(pattern).expect("a constant pattern");
        let HirKind::Class(Class::Unicode(class)) = hir.kind() else { panic!("{pattern} is a class") };
        for range in class.ranges() {
            for classes in &mut flat[range.start() as usize..=range.end() as usize] {
                *classes |= bit;
            }
        }
    }
    for newline in ['\r', '\n'] {
        flat[newline as usize] |= 64;
    }
    let mut index = Vec::new();
    let mut blocks: Vec<&[u8]> = Vec::new();
    for block in flat.chunks(256) {
        let number = blocks.iter().position(|known| *known == block).unwrap_or_else(|| {
            blocks.push(block);
            blocks.len() - 1
        });
        index.push(u8::try_from(number).expect("fewer than 256 distinct blocks"));
    }
    fs::write(out.join("class_index.bin"), &index).expect("OUT_DIR is writable");
    fs::write(out.join("class_blocks.bin"), blocks.concat()).expect("OUT_DIR is writable");
}

/// Writes the 256 byte tokens' bytes, then for each further token its two parts, three little-endian bytes each.
///
/// A token's parts are the last two pieces that byte-pair merging of its own bytes leaves before the token itself.
fn write_merges(out: &Path, name: &str, bpe: &tiktoken_rs::CoreBPE) {
    let tokens: Vec<Vec<u8>> = (0u32..).map_while(|rank| bpe.decode_bytes(&[rank]).ok()).collect();
    // The special tokens' ids follow after a gap or directly; they are no part of the merges.
    let specials = bpe.special_tokens();
    let is_special = |token: &Vec<u8>| std::str::from_utf8(token).is_ok_and(|text| specials.contains(text));
    let tokens = match tokens.iter().position(is_special) {
        Some(first) => &tokens[..first],
        None => &tokens[..],
    };
    let ranks: HashMap<&[u8], usize> = tokens.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect();
    assert_eq!(ranks.len(), tokens.len(), "{name}: a token stands twice");
    let mut data = Vec::with_capacity(tokens.len() * 6);
    for (rank, token) in tokens.iter().enumerate() {
        if rank < 256 {
            assert_eq!(token.len(), 1, "{name}: the first 256 tokens are bytes");
            data.push(token[0]);
            continue;
        }
        let (left, right) = last_merge(token, rank, &ranks);
        for part in [left, right] {
            data.extend_from_slice(&u32::try_from(part).expect("ranks are small").to_le_bytes()[..3]);
        }
    }
    fs::write(out.join(format!("{name}.bin")), data).expect("OUT_DIR is writable");
}

fn last_merge(token: &[u8], rank: usize, ranks: &HashMap<&[u8], usize>) -> (usize, usize) {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    while ends.len() > 3 {
        let (at, _) = (1..ends.len() - 1)
            .filter_map(|at| Some((at, *ranks.get(&token[ends[at - 1]..ends[at + 1]])?)))
            .filter(|&(_, merged)| merged < rank)
            .min_by_key(|&(at, merged)| (merged, at))
            .expect("every token is reachable by merges");
        ends.remove(at);
    }
    (ranks[&token[..ends[1]]], ranks[&token[ends[1]..]])
}
