//! Digests of rows and of revisions (semantics §1, V7), such that a host in any language can recompute them.
//!
//! Both are SHA-256. Numbers are unsigned, big-endian; `u64` is eight bytes, `u8` one; `tag` is ASCII, without an end.
//!
//! ```text
//! rows  = SHA-256( "foldline.rows.v1"  , for each row: offset:u64 , length:u64 , body )
//! chain = SHA-256( "foldline.chain.v1" , parent:32 bytes , kind:u8 , for each part: length:u64 , part )
//! ```

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Digest of rows: their offsets and bodies, in list order.
///
/// # Errors
/// [`Error::LengthMismatch`] if there are not as many offsets as bodies.
pub fn digest_rows<B: AsRef<[u8]>>(offsets: &[u64], bodies: &[B]) -> Result<[u8; 32]> {
    if offsets.len() != bodies.len() {
        return Err(Error::LengthMismatch { what: "offsets", actual: offsets.len(), expected: bodies.len() });
    }
    let mut hash = Sha256::new_with_prefix(b"foldline.rows.v1");
    for (offset, body) in offsets.iter().zip(bodies) {
        hash.update(offset.to_be_bytes());
        update_sized(&mut hash, body.as_ref());
    }
    Ok(hash.finalize().into())
}

/// Digest of a revision: its parent's digest, what made it, and what it changed.
///
/// # Errors
/// [`Error::DigestLength`] if the parent is not 32 bytes.
pub fn chain<B: AsRef<[u8]>>(parent: &[u8], kind: u8, payload: &[B]) -> Result<[u8; 32]> {
    if parent.len() != 32 {
        return Err(Error::DigestLength { actual: parent.len() });
    }
    let mut hash = Sha256::new_with_prefix(b"foldline.chain.v1");
    hash.update(parent);
    hash.update([kind]);
    for part in payload {
        update_sized(&mut hash, part.as_ref());
    }
    Ok(hash.finalize().into())
}

fn update_sized(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}
