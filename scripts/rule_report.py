"""Which rule is implemented where, and which tests hold it.

The list of implemented rules is `docs/semantics.md`: each stands there as ``- **F2** …`` with its files in backticks.
Code and tests say which rule they are about in docstrings, comments and test names, so nothing is listed twice. Words
of the document's first table are rules too, which tests name ``§1 unit``. Known faults of such systems, which tests and
code name ``XC1``, follow the rules in the table.

    python scripts/rule_report.py            a table: rule, code, tests
    python scripts/rule_report.py F2 V10     only these rules
    python scripts/rule_report.py --check    exit 1 where a rule lacks code or a test, is neither built nor said to be
                                             open, or is not mentioned by its files
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOC = Path("docs/semantics.md")
PACKAGE = Path("python/foldline")
CODE = (
    "python/foldline/**/*.py",
    "python/foldline/**/*.sql",
    "rust/*/src/**/*.rs",
    "examples/*/**/*.go",
    "proto/**/*.proto",
)
TESTS = ("tests/**/*.py", "rust/*/tests/**/*.rs", "examples/*/**/*_test.go")
SKIPPED = re.compile(r"/foldline/v1/.*_pb2|/v1/_third_party/|/third_party/|/gen/|/node_modules/|/target/")

FAULT = re.compile(r"X[A-Z]\d+")
ENTRY = re.compile(r"^- \*\*([A-Z]+\d+|\d\.\d)\*\* ", re.MULTILINE)
WORD = re.compile(r"^\| ([a-z][a-zA-Z, ]*) \|.*\| (`.*`) \|$", re.MULTILINE)
OPEN = re.compile(r"^\| ([^|]*[A-Z]\d[^|]*) \|", re.MULTILINE)
SECTION = re.compile(r"§(13|1 [a-zA-Z]+(?: [a-z]+)*)")
PATH = re.compile(r"`([\w./-]+\.(?:py|rs|sql|go|json|proto))`")
ID = re.compile(r"(?<![\w.])(?:(X?[A-Z])(\d{1,2})(?:\s?[-–]\s?\1?(\d{1,2}))?|([1-9]\.[1-9]))(?!\w|\.\d)")
NAME = re.compile(r"(?<![a-z0-9])(x?[a-z]\d{1,2}|\d_\d)(?![a-z0-9])")


def ids_in(text: str) -> Iterator[str]:
    """Rule ids that a text mentions; ``F1-F3`` and ``F1–F3`` mention three."""
    for letter, first, last, section in ID.findall(text):
        if section:
            yield section
            continue
        numbers = range(int(first), int(last or first) + 1)
        yield from (f"{letter}{n}" for n in numbers)


def words_in(text: str, words: Collection[str]) -> Iterator[str]:
    """Words of the document's table that a text names: ``§1 continued run``; and ``§13``, which has no ids."""
    for found in SECTION.findall(text):
        said = found.split()
        longest = next((" ".join(said[:n]) for n in range(len(said), 0, -1) if f"§{' '.join(said[:n])}" in words), "")
        if longest:
            yield f"§{longest}"


def ids_of_name(name: str) -> Iterator[str]:
    """Rule ids that a test's name begins with: ``test_4_3_x2_what_is_dropped``."""
    rest = re.sub(r"^(test_|Test)", "", name)
    while found := NAME.match(rest):
        yield found[1].replace("_", ".").upper()
        rest = rest[found.end() :].lstrip("_")


@dataclass
class Rule:
    """Where a rule is: files that the document names, files that mention it, and its tests by file.

    Attributes:
        listed: the document lists it; what it does not list is a fault that code or tests name.
    """

    listed: bool = True
    named: list[str] = field(default_factory=list)
    code: set[str] = field(default_factory=set)
    tests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def documented(text: str) -> dict[str, Rule]:
    """The rules of the document, with the files it names for each."""
    rules: dict[str, Rule] = {}
    starts = [*ENTRY.finditer(text)]
    for entry in starts:
        end = re.compile(r"^(- \*\*|#)", re.MULTILINE).search(text, entry.end())
        body = text[entry.end() : end.start() if end else len(text)]
        rules[entry[1]] = Rule(named=[resolve(p) for p in PATH.findall(body)])
    words = {
        f"§1 {word}": Rule(named=[resolve(p) for p in PATH.findall(cells)])
        for names, cells in WORD.findall(text)
        for word in names.split(", ")
    }
    events = {"§13": Rule()} if re.search(r"^## 13 ", text, re.MULTILINE) else {}
    return words | rules | events


def gaps(text: str) -> Iterator[str]:
    """Ids that are missing between the first and the last of their letter: neither built nor said to be open."""
    said = {m[1] for m in ENTRY.finditer(text)}
    said |= {rule for cell in OPEN.findall(text) for rule in ids_in(cell)}
    last: dict[str, int] = {}
    for rule in said:
        if rule[0].isalpha():
            last[rule[0]] = max(last.get(rule[0], 0), int(rule[1:]))
    yield from (f"{letter}{n}" for letter in sorted(last) for n in range(1, last[letter]) if f"{letter}{n}" not in said)


def resolve(path: str) -> str:
    """A path of the document from the root: most are written from the package on."""
    inside = PACKAGE / path
    return str(inside) if (ROOT / inside).exists() else path


def python_mentions(source: str, words: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """(rule, function or class or "") of every comment, string and test name; numbers and names are no mention."""
    spans = [
        (node.lineno, node.end_lineno or node.lineno, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    spans.sort(key=lambda span: span[1] - span[0])
    for start, _, name in spans:
        yield from ((rule, owner(spans, start)) for rule in ids_of_name(name))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            found = (*ids_in(token.string), *words_in(token.string, words))
            yield from ((rule, owner(spans, token.start[0])) for rule in found)


def owner(spans: Iterable[tuple[int, int, str]], line: int) -> str:
    return next((name for start, end, name in spans if start <= line <= end), "")


def comment_mentions(source: str) -> Iterator[tuple[str, str]]:
    """(rule, "") of every line comment of Rust, Go, SQL and protobuf."""
    for line in source.splitlines():
        comment = re.search(r"(?://|--)(.*)", line)
        if comment:
            yield from ((rule, "") for rule in ids_in(comment[1]))


def files(patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if not SKIPPED.search(path.as_posix()):
                yield path


def mentions(path: Path, words: Collection[str]) -> Iterator[tuple[str, str]]:
    source = path.read_text()
    return python_mentions(source, words) if path.suffix == ".py" else comment_mentions(source)


def report() -> dict[str, Rule]:
    """Every documented rule, in the document's order, with what mentions it; then the faults that are mentioned."""
    rules = documented((ROOT / DOC).read_text())
    words = {name for name in rules if name.startswith("§")}
    for path in files(CODE):
        where = str(path.relative_to(ROOT))
        for rule, _ in mentions(path, words):
            if known(rules, rule) and not path.name.endswith("_test.go"):
                rules[rule].code.add(where)
    for path in files(TESTS):
        where = str(path.relative_to(ROOT))
        for rule, name in mentions(path, words):
            if known(rules, rule):
                rules[rule].tests[where].add(name)
    mentioned = sorted(name for name, rule in rules.items() if not rule.listed)
    return {name: rules[name] for name in (*(n for n, r in rules.items() if r.listed), *mentioned)}


def known(rules: dict[str, Rule], name: str) -> bool:
    if FAULT.fullmatch(name):
        rules.setdefault(name, Rule(listed=False))
    return name in rules


def faults(rules: dict[str, Rule]) -> Iterator[str]:
    """What is wrong: a rule without code or test, and files of the document that are gone or do not mention it."""
    if not rules:
        yield f"{DOC} lists no rules"
    yield from (f"{name}: neither built nor said to be open" for name in gaps((ROOT / DOC).read_text()))
    for name, rule in rules.items():
        if not rule.listed:
            continue
        if not rule.code and not rule.named:
            yield f"{name}: no code mentions it"
        if not any(is_test(path) for path in rule.tests):
            yield f"{name}: no test mentions it"
        for path in rule.named:
            if not (ROOT / path).exists():
                yield f"{name}: {path} does not exist"
            elif Path(path).suffix != ".json" and path not in rule.code and not name.startswith("§"):
                yield f"{name}: {path} does not mention it"


def is_test(path: str) -> bool:
    """Whether a file holds tests, rather than what they share."""
    return Path(path).name.startswith("test_") or Path(path).suffix in (".rs", ".go")


def table(rules: dict[str, Rule]) -> Iterator[str]:
    for name, rule in rules.items():
        yield name
        for path in sorted({*rule.code, *rule.named}):
            yield f"    code   {path}"
        for path, names in sorted(rule.tests.items()):
            yield f"    tests  {path} ({len(names)})"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rules, the code that implements them, the tests that hold them.")
    parser.add_argument("rules", nargs="*", help="rule ids; all without")
    parser.add_argument("--check", action="store_true", help="only say what is missing")
    asked = parser.parse_args(arguments)
    rules = report()
    if asked.check:
        found = list(faults(rules))
        sys.stderr.writelines(f"{fault}\n" for fault in found)
        return 1 if found else 0
    unknown = [name for name in asked.rules if name not in rules]
    if unknown:
        sys.stderr.write(f"not in {DOC}: {', '.join(unknown)}\n")
        return 2
    chosen = {name: rule for name, rule in rules.items() if name in asked.rules or not asked.rules}
    sys.stdout.writelines(f"{line}\n" for line in table(chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
