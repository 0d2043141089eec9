"""Constraints a user states: what later folds must carry on verbatim (F8, XG12, XG16)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foldline.summarize.reading import Request
from foldline.summarize.text import one_line, sentences

MEMORY_LINE = "Older user constraints are not listed here; memory_search finds them."

_ENGLISH = (
    r"must(?! have\b|['’]?ve\b| be (?:so|very|hard|tough|nice|great|fun))(?:n[’']?t)?|never|always|"
    r"(?:do not|don[’']?t)(?! (?:remember|know|think|worry|see|understand|have|really|even|mind|care)\b)|shall not|"
    r"should(?:n[’']?t| not| only| never| always)|make sure|ensure|avoid|at (?:most|least)|"
    r"no (?:more|less|fewer|later|earlier) than|under no circumstances|not allowed|forbidden|prohibited|(?:is|are) required|"
    r"(?:you|we|it|they|this|that|everything) (?:will )?(?:has|have) to|needs? to (?:be|stay|keep|remain)|keep in mind|"
    r"remember that|from now on|no matter what|off[- ]limits|hands off|without (?:asking|touching|changing|breaking)|"
    r"i (?:would )?only want|prefer(?:ably)?|stick to|(?:the )?(?:budget|deadline|limit) is|"
    r"only (?:use|look|in|on|the|for|with|when|after|if|change|touch|run|read|work|deploy|their|its)|use only|"
    r"can[’']?t (?:change|touch|use|exceed)|cannot|may not|no new|nothing (?:gets|may|must|should|is to)|"
    r"(?:deploy|code|change|merge|release|feature) freeze|keep (?:it|them|that|this)|not before|"
    r"leave .{1,40} (?:alone|as (?:it )?is)"
)
_OTHERS = (
    r"muss|müssen|darf|dürfen|niemals|immer nur|auf keinen Fall|unbedingt|mindestens|höchstens|keinesfalls|"
    r"jamais|toujours|doit|doivent|il faut|uniquement|interdit|au moins|au plus|surtout pas|"
    r"nunca|siempre|debe(?:n|s)?|prohibido|únicamente|al menos|como máximo|hay que|"
    r"sempre|deve(?:m|s)?|proibido|somente|vietato|almeno|soltanto|"
    r"должен|должны|никогда|всегда|нельзя|обязательно|только|запрещено"
)
_CJK = (
    r"必须|必須|不要|不能|不得|不可|禁止|务必|只能|始终|永远|请勿|一定要|至少|最多|必ず|しないで|ないでください|常に|絶対に|のみ|"
    r"반드시|절대|항상|하지 ?마"
)
_CUE = re.compile(rf"\b(?:{_ENGLISH}|{_OTHERS})\b|{_CJK}", re.IGNORECASE)
_TALK = re.compile(
    r"\b(?:i|he|she|they|we|you|it|(?:i|we|they|you)['’]ve|i['’]m|(?:he|she|it|that)['’]s|(?:we|they|you)['’]re)"
    r" (?:have |has |had |will |would )?(?:always|never)\b(?! (?:want|accept|allow|touch|use|be)\b)",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"[?？]\W*$")
_SHORTEST, _LONGEST, _PER_ROW = 8, 500, 12
_DATA = re.compile(r'[{}\[]"|":|"\}|=>|;\s*$|\b\d+: |-{5}|``|lines (?:total|above|below)|\w\(\w*\)\s*[{;]')
_LOG_LINE = re.compile(r"^(?:\s*at |\[?\d{4}-\d\d-\d\d|Traceback|\w+(?:Error|Exception):|[{<|$>])")


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint in the user's words; ``offset`` 0 says that an earlier summary carried it."""

    offset: int
    text: str


def is_constraint(sentence: str) -> bool:
    return (
        _SHORTEST <= len(sentence) <= _LONGEST
        and bool(_CUE.search(sentence))
        and not _TALK.search(sentence)
        and not _QUESTION.search(sentence)
        and not _LOG_LINE.match(sentence)
        and not _DATA.search(sentence)
    )


def constraints_of(requests: Iterable[Request]) -> list[Constraint]:
    """Constraint sentences of user rows, oldest first, each once."""
    found: dict[str, Constraint] = {}
    for request in requests:
        if request.speaker != "user" or not request.text:
            continue
        stated = [s for s in sentences(request.text) if is_constraint(s)]
        for sentence in stated[:_PER_ROW]:
            found[sentence] = Constraint(request.offset, sentence)
    return list(found.values())


def durable_part(earlier: Sequence[tuple[str, ...]], new: Sequence[Constraint]) -> list[Constraint]:
    """Carried and new constraints, oldest first; one that was stated again counts as new (F8)."""
    merged: dict[str, Constraint] = {}
    for carried in earlier:
        for text in carried:
            merged.setdefault(one_line(text), Constraint(0, one_line(text)))
    for constraint in new:
        merged.pop(constraint.text, None)
        merged[constraint.text] = constraint
    return list(merged.values())
