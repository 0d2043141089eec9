"""S9: which identifiers matter, whether a summary mentions them, and the appendix of those it misses."""

from __future__ import annotations

import pytest
from foldline.summarize.coverage import APPENDIX_TITLE, appendix_of, cover, mentions, missing
from foldline.summarize.identifiers import Identifier, IdentifierKind, find_identifiers, identifiers_of
from foldline.summarize.reading import read_rows

from tests.unit.summarize.talk import call, count, result, rows, says, user


def identifier(text: str, kind: IdentifierKind = IdentifierKind.ID, probe: str = "") -> Identifier:
    return Identifier(text, kind, 2.0, 1, probe or text)


@pytest.mark.parametrize(
    ("text", "found", "kind"),
    [
        ("see https://example.org/a/b?c=d.", "https://example.org/a/b?c=d", IdentifierKind.URL),
        ("in /etc/paygate/config.yaml, line 3", "/etc/paygate/config.yaml", IdentifierKind.PATH),
        ("open src/app/main.rs:12", "src/app/main.rs", IdentifierKind.PATH),
        ("read @packages/agent/src/main.ts in full", "packages/agent/src/main.ts", IdentifierKind.PATH),
        ("the file setup.py is old", "setup.py", IdentifierKind.PATH),
        ("user mia_li_3668 asked", "mia_li_3668", IdentifierKind.ID),
        ("event evt_8FQ2x7LmT0 is lost", "evt_8FQ2x7LmT0", IdentifierKind.ID),
        ("id 3f2b8c1e-1111-4222-8333-abcdefabcdef done", "3f2b8c1e-1111-4222-8333-abcdefabcdef", IdentifierKind.ID),
        ("ask ops@example.org", "ops@example.org", IdentifierKind.ID),
        ("raised KeyError here", "KeyError", IdentifierKind.CODE),
        ("got ECONNREFUSED again", "ECONNREFUSED", IdentifierKind.CODE),
        ("ticket INC-20417 is open", "INC-20417", IdentifierKind.CODE),
        ("set MAX_RETRIES to it", "MAX_RETRIES", IdentifierKind.CODE),
        ("call `make deploy` later", "make deploy", IdentifierKind.NAME),
        ("the function readFileSync fails", "readFileSync", IdentifierKind.NAME),
        ("a timeout of 30 s", "30 s", IdentifierKind.NUMBER),
        ("on 2026-03-12 at noon", "2026-03-12", IdentifierKind.NUMBER),
        ("costs $1,250.50 in all", "$1,250.50", IdentifierKind.NUMBER),
    ],
)
def test_s9_identifiers_are_found_exactly_as_written(text: str, found: str, kind: IdentifierKind) -> None:
    assert find_identifiers(text).get(found) == kind


@pytest.mark.parametrize(
    "text", ["and/or either/or", "a plain sentence.", "1) first 2) second", "e.g. this, i.e. that", ""]
)
def test_s9_prose_holds_no_identifiers(text: str) -> None:
    assert find_identifiers(text) == {}


@pytest.mark.parametrize(
    ("text", "wanted", "kind", "held"),
    [
        ("paid 42 EUR", "42", IdentifierKind.NUMBER, True),
        ("paid 142 EUR", "42", IdentifierKind.NUMBER, False),
        ("paid 3.42 EUR", "42", IdentifierKind.NUMBER, False),
        ("paid 42.5 EUR", "42", IdentifierKind.NUMBER, False),
        ("paid 42, then left", "42", IdentifierKind.NUMBER, True),
        ("WP14 is done", "WP1", IdentifierKind.ID, False),
        ("WP14 and WP1.", "WP1", IdentifierKind.ID, True),
        ("/home/dev/src/a.py", "src/a.py", IdentifierKind.PATH, True),
        ("src/ba.py", "a.py", IdentifierKind.PATH, False),
        ("", "x1", IdentifierKind.ID, False),
    ],
)
def test_s9_a_mention_is_whole(text: str, wanted: str, kind: IdentifierKind, held: bool) -> None:
    assert mentions(text, identifier(wanted, kind)) is held


def test_s9_the_forms_of_a_path_are_one_identifier() -> None:
    reading = read_rows(
        rows(
            user("Look at app/src/main.ts please, all of /srv/app/src/main.ts."),
            says("I read main.ts.", call("a", "read", path="/srv/app/src/main.ts")),
            user("And main.ts again?"),
        ),
        lambda t: t,
    )
    paths = [i for i in identifiers_of(reading) if i.kind == IdentifierKind.PATH]
    assert [(p.text, p.probe) for p in paths] == [("/srv/app/src/main.ts", "app/src/main.ts")]


def test_s9_what_only_a_listing_shows_does_not_matter() -> None:
    listing = "\n".join(f"src/module_{n}/file_{n}.py" for n in range(40))
    reading = read_rows(
        rows(says("", call("a", "bash", command="ls -R")), result("a", listing), user("Open src/module_7/file_7.py.")),
        lambda t: t,
    )
    assert [i.text for i in identifiers_of(reading)] == ["src/module_7/file_7.py"]


def test_s9_a_constraint_counts_as_an_identifier() -> None:
    reading = read_rows(rows(user("hello")), lambda t: t)
    (only,) = identifiers_of(reading, [(1, "Never push to main.")])
    assert mentions('The user requires: "Never push to main."', only)
    assert not mentions("Never push to master.", only)


def test_s9_the_appendix_takes_the_weightiest_that_fit() -> None:
    many = [identifier(f"id_{n:04d}") for n in range(400)]
    text = appendix_of(many, 100, count)
    assert text.startswith(f"{APPENDIX_TITLE} id_0000, id_0001")
    assert 80 <= count(text) <= 100
    assert appendix_of(many, 5, count) == ""
    assert appendix_of([], 100, count) == ""


def test_s9_scores_are_shares_before_and_with_the_appendix() -> None:
    four = [identifier(t) for t in ("aa1", "bb2", "cc3", "dd4")]
    text, coverage, added = cover("only aa1 here", four, 0.6, 100, count)
    assert (coverage.summary, coverage.with_appendix, coverage.identifiers) == (0.25, 1.0, 4)
    assert added == count(text) - count("only aa1 here") <= 100
    assert missing(four, text) == []
    untouched, coverage, added = cover("aa1 bb2 cc3", four, 0.6, 100, count)
    assert (untouched, coverage.summary, coverage.with_appendix, added) == ("aa1 bb2 cc3", 0.75, 0.75, 0)
    assert cover("nothing", [], 1.0, 100, count)[1].summary == 1.0
