"""Words by which sentences are told apart: what decides, asks, announces, requires, reports.

English first, since tool-using agents mostly speak it; the commonest words of other languages beside it. A cue only
ranks a sentence: text of any language is quoted as it stands.
"""

from __future__ import annotations

import re


def _words(*lines: str, start: str = r"\b", end: str = r"\b") -> re.Pattern[str]:
    """One pattern of alternatives; lines that begin with ``=`` hold words of scripts without word borders."""
    bare = "|".join(line[1:] for line in lines if line[0] == "=")
    bounded = "|".join(line for line in lines if line[0] != "=")
    return re.compile(f"{start}(?:{bounded}){end}" + (f"|{bare}" if bare else ""), re.IGNORECASE)


DECIDES = _words(
    r"decid\w+|decision|cho(?:se|ose|sen)|instead of|rather than|because|therefore|so that|root cause|turns out",
    r"the reason|caused by|due to|agreed|we(?:['’]ll| will) (?:use|keep|go)|going with|switch(?:ed)? to|trade-?off",
    r"the (?:issue|problem|fix|plan|approach|solution) (?:is|was)|means that|approach|recommend|proposal",
    r"weil|deshalb|entschieden|stattdessen|parce que|donc|porque|entonces|decidimos|потому что|решили",
    r"=因为|所以|决定|原因|なので|ため|決定|때문",
)
SETTLES = _words(
    r"root cause|(?:real|actual) (?:cause|reason|problem|bug)|decided|ruled out|proven|confirmed|turns out|we agreed",
    r"conclusion|Ursache|causa|cause première",
    r"=根本原因|原因は",
)
REPORTS = _words(
    r"done|fixed|created|added|removed|moved|updated|implemented|committed|pushed|works?|passes|passed|verified",
    r"confirmed|complete\w*|booked|cancell?ed|refunded|changed|deployed|found|now|all",
    r"fertig|erledigt|terminé|hecho|готово",
    r"=完成|已|完了|しました",
)
AHEAD = _words(
    r"todo|to do|next steps?|remaining|still (?:need|have|to|missing)|not yet|later|follow[- ]?up|pending|blocked",
    r"waiting|open question|left to|outstanding|will (?:then|need)|should (?:then|also)",
    r"offen|nächste|reste à|pendiente|falta",
    r"=下一步|待办|尚未|次に|残り",
)
ASKS = re.compile(r"[?？]\W{0,6}$")
PLEADS = re.compile(r"\bplease (?:let me know|confirm|provide|tell|specify|choose)\b", re.IGNORECASE)
LABELLED = re.compile(r"[\W_]*[A-Z][\w /-]{0,24}:[\W_]* \S")
ENDED = re.compile(r"[.!。！…][\"')\]”’»*_`]{0,3}\Z|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
ANNOUNCES = _words(r"i|we", start=r"(?:now |next,? |first,? |then )?")
FILLER = _words(
    r"let me|let['’]s|i['’]ll|i will|i['’]m going to|i need to|i should|i can|i want to|we need to|we should",
    r"we can|we['’]ll|we will",
    r"here(?:['’]s| is| are)|you['’]re (?:absolutely )?right|good (?:question|point|idea|catch)|with that",
    r"please (?:let me know|confirm|provide|tell|specify|choose)|if you (?:need|have any|would like|want|wish)",
    r"feel free|thank(?:s| you)\b|you['’]re welcome|glad|happy to|looks good|ready to",
    start=(
        r"(?:(?:ok(?:ay)?|great|perfect|good|excellent|sure|right|yes|no worries|alright|done|hmm|ah|oh|wow|hey"
        r"|actually|if so)\b[^a-z]{0,3})*(?:now |next,? |first,? |so |then )?"
    ),
)
TRIVIAL = _words(
    r"ok(?:ay)?|yes|yep|yo|no|sure|thank(?:s| you)[^.!?]{0,40}|continue|go on|wow|cool|nice|great|ls|hi|hello",
    start=r"\W*",
    end=r"\W*$",
)
YES_NO = _words(
    r"yes|yep|no|nope|nah|ok|go ahead|do it|leave|keep|ja|nein|oui|non|sí|да|нет|\d",
    r"=\A(?:是|不|はい|いいえ)",
    start=r"\A\W*",
)
REQUIRES = _words(
    r"must(?! have\b|['’]?ve\b| be (?:so|very|hard|tough|nice|great|fun))(?:n[’']?t)?|never|always",
    r"(?:do not|don[’']?t)(?! (?:remember|know|think|worry|see|understand|have|really|even|mind|care)\b)|shall not",
    r"should(?:n[’']?t| not| only| never| always)|make sure|ensure|avoid|at (?:most|least)",
    r"no (?:more|less|fewer|later|earlier) than|under no circumstances|not allowed|forbidden|prohibited",
    r"(?:is|are) required|(?:you|we|it|they|this|that|everything) (?:will )?(?:has|have) to|needs? to (?:be|stay|keep)",
    r"keep in mind|remember that|from now on|no matter what|off[- ]limits|hands off|keep (?:it|them|that|this)",
    r"without (?:asking|touching|changing|breaking)|i (?:would )?only want|prefer(?:ably)?|stick to|use only",
    r"not before",
    r"(?:the )?(?:budget|deadline|limit) is|(?:deploy|code|change|merge|release|feature) freeze|no new",
    r"only (?:use|look|in|on|the|for|with|when|after|if|change|touch|run|read|work|deploy|their|its)",
    r"can[’']?t (?:change|touch|use|exceed)|cannot|may not|nothing (?:gets|may|must|should|is to)",
    r"leave .{1,40} (?:alone|as (?:it )?is)",
    r"muss|müssen|darf|dürfen|niemals|immer nur|auf keinen Fall|unbedingt|mindestens|höchstens|keinesfalls",
    r"jamais|toujours|doit|doivent|il faut|uniquement|interdit|au moins|au plus|surtout pas",
    r"nunca|siempre|debe(?:n|s)?|prohibido|únicamente|al menos|como máximo|hay que",
    r"sempre|deve(?:m|s)?|proibido|somente|vietato|almeno|soltanto",
    r"должен|должны|никогда|всегда|нельзя|обязательно|только|запрещено",
    r"=必须|必須|不要|不能|不得|不可|禁止|务必|只能|始终|永远|请勿|一定要|至少|最多|必ず|しないで|ないでください|常に|絶対に|のみ",
    r"=반드시|절대|항상|하지 ?마",
)
SMALL_TALK = _words(
    r"always|never",
    start=(
        r"\b(?:i|he|she|they|we|you|it|(?:i|we|they|you)['’]ve|i['’]m|(?:he|she|it|that)['’]s|(?:we|they|you)['’]re)"
        r" (?:have |has |had |will |would )?"
    ),
    end=r"\b(?! (?:want|accept|allow|touch|use|be)\b)",
)
PEP_TALK = _words(
    r"not always|keep it up|never give up|(?:i['’]ll|i will|i) (?:always )?(?:do|try)[^.]{0,30}make sure",
    r"don['’]?t (?:last|forget to)",
)
PASTED_ERROR = re.compile(r"Traceback \(most recent|^[ \t]*\w*(?:Error|Exception)\b:", re.MULTILINE)
