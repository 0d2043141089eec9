//! `cargo bench` in this folder: counting by the core and by its peers, on texts made from a fixed seed.
//!
//! The figures of record are `bench/g1_counting.py`'s, over real inputs; this one is for work on the counter.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use foldline_core::estimate::{Encoding, weighted_tokens};

const SEED: u64 = 7;
const BYTES: usize = 256 * 1024;

/// Numbers that look random, the same in every run.
struct Steps(u64);

impl Steps {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit as u64) as usize
    }
}

/// Words of the vocabulary that pass, low ranks often, joined and ended by marks.
fn words(passes: impl Fn(&str) -> bool, join: &str, ends: [&str; 4]) -> String {
    let known: Vec<String> = Encoding::O200k
        .ranks()
        .into_iter()
        .filter_map(|token| String::from_utf8(token).ok())
        .filter(|word| passes(word))
        .collect();
    let mut steps = Steps(SEED);
    let mut text = String::new();
    while text.len() < BYTES {
        for _ in 0..4 + steps.below(12) {
            let limit = 1 + steps.below(known.len());
            text.push_str(&known[steps.below(limit)]);
            text.push_str(join);
        }
        text.push_str(ends[steps.below(4)]);
    }
    text
}

fn inputs() -> [(&'static str, String); 5] {
    let latin = |word: &str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_lowercase());
    let han = |word: &str| word.chars().all(|letter| ('一'..='鿿').contains(&letter));
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut steps = Steps(SEED);
    [
        ("words", words(latin, " ", [". ", ", ", "?\n", "\n\n"])),
        ("json", words(latin, "\": 12, \"", ["\"},\n{\"", "\": null, \"", "\": [], \"", "\": {\""])),
        ("han", words(han, "", ["，", "。", "？", "！\n"])),
        ("base64", (0..BYTES).map(|_| char::from(alphabet[steps.below(64)])).collect()),
        ("letters", (0..BYTES).map(|_| char::from(alphabet[26 + steps.below(26)])).collect()),
    ]
}

fn count(criterion: &mut Criterion) {
    let toktok = toktok::Tokenizer::builtin("o200k_base").expect("an embedded encoding");
    for (kind, text) in inputs() {
        let mut group = criterion.benchmark_group(kind);
        group.throughput(Throughput::Bytes(text.len() as u64));
        let id = |name: &str| BenchmarkId::from_parameter(name);
        group.bench_function(id("foldline"), |run| run.iter(|| Encoding::O200k.count(black_box(&text))));
        group.bench_function(id("toktok-rs"), |run| run.iter(|| toktok.count(black_box(text.as_bytes()))));
        group.bench_function(id("bpe-openai"), |run| {
            run.iter(|| bpe_openai::o200k_base().count(black_box(text.as_str())))
        });
        group.bench_function(id("weighted"), |run| run.iter(|| weighted_tokens(black_box(&text))));
        group.finish();
    }
}

criterion_group!(benches, count);
criterion_main!(benches);
