"""The reference tokenizer, fed with the vocabulary that the core embeds: its own loader would fetch a file."""

import base64
import functools
import hashlib
from unittest import mock

import tiktoken
from foldline import _core
from tiktoken_ext import openai_public


@functools.cache
def reference(name: str) -> tiktoken.Encoding:
    """`tiktoken`'s encoding of that name, with its published pattern and no special tokens.

    The embedded vocabulary is written in the published file's form and must have the published file's SHA-256.
    """
    ranks = {token: rank for rank, token in enumerate(_core.ranks(name))}

    def load(_url: str, expected_hash: str) -> dict[bytes, int]:
        lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
        actual = hashlib.sha256(b"".join(lines)).hexdigest()
        if actual != expected_hash:
            raise AssertionError(f"{name}: the embedded vocabulary has SHA-256 {actual}, published is {expected_hash}")
        return ranks

    with mock.patch.object(openai_public, "load_tiktoken_bpe", load):
        made = getattr(openai_public, name)()
    return tiktoken.Encoding(name, pat_str=made["pat_str"], mergeable_ranks=made["mergeable_ranks"], special_tokens={})


def reference_count(text: str, name: str) -> int:
    return len(reference(name).encode_ordinary(text))
