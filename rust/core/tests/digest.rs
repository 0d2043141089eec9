//! Digests (§1, V7) against values computed with another SHA-256 from the documented layout.

use foldline_core::digest::{chain, digest_rows};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

fn hex(digest: [u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// From Python: `hashlib.sha256(b"foldline.rows.v1" + …)`; a change of these is a change of every stored digest.
#[test]
fn known_digests() {
    assert_eq!(
        hex(digest_rows(&[1, 2], &[b"a", b"b"]).unwrap()),
        "df46e0d4434273863a969b2d7c3e3fa1fc04941977933446d57ace0fc78e5341"
    );
    assert_eq!(
        hex(chain(&[0; 32], 1, &[b"x"]).unwrap()),
        "836b4002f96beca22dc0a4501862414fa1d7bd1941cca1f192249e7456d1cab9"
    );
}

#[test]
fn bad_lengths_are_refused() {
    assert_eq!(digest_rows(&[1], &[b"a", b"b"]).unwrap_err().reason(), "LENGTH_MISMATCH");
    assert_eq!(chain(&[0; 31], 1, &[b"x"]).unwrap_err().reason(), "DIGEST_LENGTH");
}

proptest! {
    #[test]
    fn digests_follow_the_documented_layout(rows in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)), 0..6), kind: u8) {
        let (offsets, bodies): (Vec<u64>, Vec<Vec<u8>>) = rows.iter().cloned().unzip();
        let mut bytes = b"foldline.rows.v1".to_vec();
        let mut link = b"foldline.chain.v1".to_vec();
        link.extend([7; 32]);
        link.push(kind);
        for (offset, body) in &rows {
            bytes.extend(offset.to_be_bytes());
            for out in [&mut bytes, &mut link] {
                out.extend((body.len() as u64).to_be_bytes());
                out.extend(body);
            }
        }
        let expected: [u8; 32] = Sha256::digest(&bytes).into();
        prop_assert_eq!(digest_rows(&offsets, &bodies).unwrap(), expected);
        let expected: [u8; 32] = Sha256::digest(&link).into();
        prop_assert_eq!(chain(&[7; 32], kind, &bodies).unwrap(), expected);
    }

    /// Moving a byte from one body to the next changes the digest.
    #[test]
    fn lengths_are_part_of_the_digest(first in prop::collection::vec(any::<u8>(), 1..20), second in prop::collection::vec(any::<u8>(), 0..20)) {
        let moved = (first[..first.len() - 1].to_vec(), [&first[first.len() - 1..], &second[..]].concat());
        prop_assert_ne!(digest_rows(&[1, 2], &[first, second]).unwrap(), digest_rows(&[1, 2], &[moved.0, moved.1]).unwrap());
    }
}
