//! Sizes of stored rows (semantics 4.5), from the canonical JSON of their bodies.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{Encoding, weighted_tokens};
use crate::error::{Error, Result};

/// Tokens that a row costs besides its content.
pub const ROW_TOKENS: u64 = 4;
/// Tokens of an image for which no provider formula gives more.
pub const IMAGE_TOKENS: u64 = 1_600;
/// Tokens of a second of video.
pub const VIDEO_TOKENS_PER_SECOND: u64 = 300;
/// Bytes that a row costs in a request body besides its strings: role, brackets, commas.
pub const ROW_OVERHEAD: u64 = 40;
/// Bytes that a block costs besides its strings: type tag, field names, brackets, commas.
pub const BLOCK_OVERHEAD: u64 = 56;

/// What a row adds to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSize {
    /// Estimated tokens; no more than a ledger's column holds, whatever duration a video claims.
    pub tokens: u64,
    /// Estimated bytes in a provider's request body: the strings as JSON escapes them (text outside ASCII as UTF-8)
    /// and [`ROW_OVERHEAD`] and [`BLOCK_OVERHEAD`].
    pub bytes: u64,
}

/// The fields of all row types that reach a provider; what a type does not have is empty.
#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Vec<Object<Block<'a>>>,
    #[serde(borrow, default)]
    call_id: Cow<'a, str>,
    #[serde(borrow, default)]
    usage_mark: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    #[serde(borrow, default)]
    ledger: Cow<'a, str>,
    #[serde(borrow, default)]
    item_json: Cow<'a, str>,
    #[serde(borrow, default)]
    extra: Cow<'a, str>,
}

/// The fields of all block types.
#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    #[serde(borrow, default)]
    json: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    call_id: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments_json: Cow<'a, str>,
    #[serde(borrow, default)]
    title: Cow<'a, str>,
    #[serde(borrow, default)]
    mime_type: Cow<'a, str>,
    #[serde(borrow, default)]
    url: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Cow<'a, str>,
    #[serde(borrow, default)]
    state: Cow<'a, str>,
    #[serde(borrow, default)]
    signature: Cow<'a, str>,
    #[serde(borrow, default)]
    extra: Cow<'a, str>,
    #[serde(default)]
    tokens_hint: u64,
    #[serde(default)]
    duration_seconds: f64,
}

/// A JSON object: without it a struct is read from an array of its fields' values too.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// Sizes of rows, each the canonical JSON of a body; texts are counted in `encoding`, or by weighted bytes.
///
/// # Errors
/// [`Error::RowInvalid`] names the first row that is not the JSON of a row body, or has a row or block type that this
/// version does not know.
pub fn measure_rows<'a>(rows: impl IntoIterator<Item = &'a [u8]>, encoding: Option<Encoding>) -> Result<Vec<RowSize>> {
    let counter = Counter { encoding };
    rows.into_iter()
        .enumerate()
        .map(|(index, json)| {
            serde_json::from_slice(json)
                .and_then(|Object(row)| counter.row(&row))
                .map_err(|source| Error::RowInvalid { index, source })
        })
        .collect()
}

struct Counter {
    encoding: Option<Encoding>,
}

impl Counter {
    fn text(&self, text: &str) -> u64 {
        let tokens = match self.encoding {
            _ if text.is_empty() => 0,
            Some(encoding) => encoding.count(text),
            None => weighted_tokens(text),
        };
        tokens as u64
    }

    fn row(&self, row: &Row<'_>) -> Result<RowSize, serde_json::Error> {
        let mut size = RowSize { tokens: ROW_TOKENS, bytes: ROW_OVERHEAD + row.extra.len() as u64 };
        match &*row.kind {
            "system" | "notice" | "user" | "injected_context" | "assistant" => {}
            "tool_result" => {
                size.tokens += self.text(&row.usage_mark);
                size.bytes += escaped_len(&row.call_id) + escaped_len(&row.usage_mark);
            }
            "compaction_summary" => {
                size.tokens += self.text(&row.text) + self.text(&row.ledger);
                size.bytes += escaped_len(&row.text) + escaped_len(&row.ledger);
            }
            "provider_compaction" => {
                size.tokens += opaque(row.item_json.len());
                size.bytes += row.item_json.len() as u64;
            }
            kind => return Err(unknown("row", kind)),
        }
        for Object(block) in &row.content {
            size.tokens += self.block(block)?;
            size.bytes += block.bytes();
        }
        size.tokens = size.tokens.min(u64::from(u32::MAX));
        Ok(size)
    }

    fn block(&self, block: &Block<'_>) -> Result<u64, serde_json::Error> {
        let tokens = match &*block.kind {
            "text" | "transcript" => self.text(&block.text),
            "structured" => self.text(&block.json),
            "reasoning" => self.text(&block.text) + opaque(block.state.len()) + opaque(block.signature.len()),
            "tool_call" => self.text(&block.name) + self.text(&block.arguments_json),
            "server_tool" => self.text(&block.name) + self.text(&block.json),
            "image" => block.tokens_hint.clamp(IMAGE_TOKENS, u64::from(u32::MAX)),
            "video" => {
                // The cast saturates; the row's sum does so at the end.
                let seconds = (block.duration_seconds * VIDEO_TOKENS_PER_SECOND as f64).ceil() as u32;
                opaque(block.data.len()).max(u64::from(seconds))
            }
            "audio" => opaque(block.data.len()),
            "document" => self.text(&block.title) + opaque(block.data.len()),
            kind => return Err(unknown("block", kind)),
        };
        Ok(tokens.max(u64::from(block.bytes() > BLOCK_OVERHEAD)))
    }
}

impl Block<'_> {
    fn bytes(&self) -> u64 {
        let texts = [
            &self.text,
            &self.json,
            &self.name,
            &self.call_id,
            &self.arguments_json,
            &self.title,
            &self.mime_type,
            &self.url,
        ];
        let raw = [&self.data, &self.state, &self.signature, &self.extra];
        BLOCK_OVERHEAD
            + texts.iter().map(|text| escaped_len(text)).sum::<u64>()
            + raw.iter().map(|text| text.len() as u64).sum::<u64>()
    }
}

/// Tokens of base64 or opaque state: a quarter of its length.
fn opaque(len: usize) -> u64 {
    len.div_ceil(4) as u64
}

fn unknown(what: &str, kind: &str) -> serde_json::Error {
    serde_json::Error::custom(format_args!("unknown {what} type {kind:?}"))
}

/// Length of a string inside JSON, without its quotes.
pub(crate) fn escaped_len(text: &str) -> u64 {
    escaped_size(text.as_bytes()) as u64
}

/// Bytes that bytes of a string take inside JSON.
#[inline]
pub(crate) fn escaped_size(bytes: &[u8]) -> usize {
    // Sums of a byte each: a compiler adds up as many at a time as there is room for in a register.
    let more = |chunk: &[u8]| usize::from(chunk.iter().map(|&byte| more(byte)).sum::<u8>());
    bytes.len() + bytes.chunks(32).map(more).sum::<usize>()
}

/// Bytes that a byte takes inside JSON besides itself.
#[inline]
fn more(byte: u8) -> u8 {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0C => 1,
        0..0x20 => 5,
        _ => 0,
    }
}
