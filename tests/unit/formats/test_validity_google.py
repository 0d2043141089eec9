"""The checker of what generateContent refuses fires on each of its rules, and on nothing that it takes."""

import copy

import pytest

from tests.validity import google_faults

SIGNED = {"thoughtSignature": "c2ln"}


def turns(*parts, **more):
    roles = ("user", "model")
    return {"contents": [{"role": roles[i % 2], "parts": given} for i, given in enumerate(parts)], **more}


def said(text="x", **more):
    return {"text": text, **more}


def call(name="f", **more):
    return {"functionCall": {"name": name, "args": {}, **more}, **SIGNED}


def answer(name="f", **more):
    return {"functionResponse": {"name": name, "response": {"output": "r"}, **more}}


def asked(*parts):
    return turns(list(parts))


def replied(*parts):
    return turns([said()], list(parts), [said()])


def called(*parts):
    return turns([said()], [call()], list(parts))


PNG = {"mimeType": "image/png", "data": "aWs="}
VALID = turns(
    [said(), {"inlineData": PNG}, {"file_data": {"file_uri": "https://example.org/x", "mime_type": "image/png"}}],
    [said("hm", thought=True), said("", **SIGNED), call(), call("g", id="1"), {"functionCall": {"name": "f"}}],
    [answer("g", id="1"), answer(), answer(parts=[{"inlineData": PNG}]), said("and")],
    [{"executableCode": {"code": "1"}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}, said()],
    systemInstruction={"parts": [said()]},
)


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        ({"contents": []}, "contents: empty"),
        (turns([said()], tools=[]), "unknown field tools"),
        (turns([said()], systemInstruction={"parts": []}), "system: no parts"),
        (turns([said()], system_instruction={"parts": [{"inlineData": PNG}]}), "system: a part that is no text"),
        ({"contents": [{"role": "model", "parts": [said()]}]}, "first content is the model's"),
        ({"contents": [{"role": "system", "parts": [said()]}]}, "role 'system'"),
        ({"contents": [{"role": "user", "parts": [said()], "name": "x"}]}, "unknown field name"),
        ({"contents": [{"role": "user", "parts": [said()]}] * 2}, "second user content in a row"),
        (turns([]), "no parts"),
        (asked({}), "part with the data []"),
        (asked({"text": "x", "inlineData": PNG}), "part with the data ['text', 'inlineData']"),
        (asked(said(mood=1)), "part with unknown field mood"),
        (asked(said("")), "empty text part"),
        (asked({"text": 4}), "empty text part"),
        (asked({"inlineData": "x"}), "inlineData is no object"),
        (asked({"inlineData": {**PNG, "mimeType": "image/tiff"}}), "media of type 'image/tiff'"),
        (asked({"inlineData": {**PNG, "data": "%"}}), "data is no base64"),
        (asked({"inlineData": {**PNG, "data": ""}}), "no base64 data"),
        (asked({"fileData": {"mimeType": "image/png"}}), "file without a uri"),
        (replied(said(thoughtSignature="<>")), "signature '<>'"),
        (asked(said(thought=True)), "thought in a user content"),
        (asked(said(**SIGNED)), "thought in a user content"),
        (asked(call()), "call in a user content"),
        (asked({"executableCode": {"code": "1"}}), "executableCode in a user content"),
        (replied(answer()), "response in a model content"),
        (turns([said()], [call("a b")], [answer("a b")]), "function name 'a b'"),
        (turns([said()], [call("x" * 65)], [answer("x" * 65)]), "function name"),
        (turns([said()], [call(args=[])], [answer()]), "are no object"),
        (called(answer(response="r")), "response of f is no object"),
        (called(answer(parts=[said()])), "response with a part text"),
        (called(answer(parts=[{"inlineData": {**PNG, "mimeType": "audio/wav"}}])), "media of type 'audio/wav'"),
        (turns([said()], [call()]), "end: calls without responses"),
        (called(said()), "0 responses to 1 calls"),
        (called(answer(), answer()), "2 responses to 1 calls"),
        (turns([answer()]), "1 responses to 0 calls"),
        (called(answer("g")), "0 responses to 1 calls of f"),
        (turns([said()], [call(id="1")], [answer(id="2")]), "responses to the ids"),
        (turns([said()], [call(id="1")], [answer()]), "responses to the ids"),
        (called(said(), answer()), "responses do not come first"),
        (
            {"contents": [{"role": "user", "parts": [said()]}, {"role": "model", "parts": [said()]},
                          {"role": "model", "parts": [call()]}, {"role": "user", "parts": [answer()]}]},
            "calls come after the model's own content",
        ),
        (turns([said()], [{"functionCall": {"name": "f"}}], [answer()]), "the first call has no signature"),
        (replied({"codeExecutionResult": {"outcome": "OUTCOME_OK"}}), "results of code that nothing ran"),
        (turns([said("a\udc00")]), "lone surrogate"),
    ],
)  # fmt: skip
def test_every_rule_of_generate_content_fires(request_, fault):
    assert google_faults(VALID) == []
    assert any(fault in found for found in google_faults(request_)), google_faults(request_)


def test_neighbours_of_one_role_and_unsigned_calls_are_allowed_where_asked():
    unsigned = turns([said()], [{"functionCall": {"name": "f"}}], [answer()])
    assert google_faults(unsigned, signed=False) == []
    assert google_faults({"contents": [{"role": "user", "parts": [said()]}] * 2}, alternating=False) == []


def test_the_checker_changes_nothing():
    before = copy.deepcopy(VALID)
    google_faults(VALID)
    assert before == VALID
