"""The report of rules: it reads what is there, and fails where a rule has no code or no test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/rule_report.py"


@pytest.fixture
def reporter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rule_report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def repository(folder: Path, document: str, code: str = "", test: str = "") -> None:
    for path, text in (
        ("docs/semantics.md", document),
        ("python/foldline/engine/rules.py", code),
        ("tests/unit/test_rules.py", test),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def test_every_documented_rule_has_code_and_a_test(reporter: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert reporter.main(["--check"]) == 0, capsys.readouterr().err
    assert len(reporter.documented((reporter.ROOT / reporter.DOC).read_text())) > 80


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("(P3, F2)", ["P3", "F2"]),
        ("rules F1-F3 and V1–V2", ["F1", "F2", "F3", "V1", "V2"]),
        ("B1-B2", ["B1", "B2"]),
        ("4.3 drops it", ["4.3"]),
        ("XC1 is a fault", ["XC1"]),
        ("foldline.V1, F2x, sha1, 14.3, 4.3.1, a V", []),
    ],
)
def test_what_counts_as_a_mention(reporter: ModuleType, text: str, ids: list[str]) -> None:
    assert list(reporter.ids_in(text)) == ids


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_4_3_4_4_x2_what_is_dropped", ["4.3", "4.4", "X2"]),
        ("test_v10_a_crash", ["V10"]),
        ("test_base64_is_text", []),
        ("test_f2_and_more_of_p3", ["F2"]),
    ],
)
def test_a_name_begins_with_its_rules(reporter: ModuleType, name: str, ids: list[str]) -> None:
    assert list(reporter.ids_of_name(name)) == ids


DOCUMENT = "## 1\n\n- **P3** History. `engine/rules.py`\n- **4.3** Anchor.\n| P1, P2 | not yet |\n"
CODE = 'def measure() -> float:\n    """P3."""\n    return 4.3\n\n\n# 4.3: why\n'
TEST = 'def test_p3_example() -> None:\n    """4.3."""\n'


@pytest.mark.parametrize(
    ("document", "code", "test", "missing"),
    [
        (DOCUMENT, CODE, TEST, []),
        (DOCUMENT, CODE.replace("# 4.3: why", ""), TEST, ["4.3: no code mentions it"]),
        (DOCUMENT, CODE, "", ["P3: no test mentions it", "4.3: no test mentions it"]),
        (DOCUMENT, CODE.replace('"""P3."""', ""), TEST, ["P3: python/foldline/engine/rules.py does not mention it"]),
        (DOCUMENT.replace("rules.py", "gone.py"), CODE, TEST, ["P3: engine/gone.py does not exist"]),
        ("no rules", CODE, TEST, ["docs/semantics.md lists no rules"]),
        (
            DOCUMENT.replace("- **4.3**", "- **P6** Bytes.\n- **4.3**"),
            CODE + "# P6\n",
            TEST + "# P6\n",
            ["P4: neither built nor said to be open", "P5: neither built nor said to be open"],
        ),
        (DOCUMENT.replace("| P1, P2 |", "| P2 |"), CODE, TEST, ["P1: neither built nor said to be open"]),
        (DOCUMENT + "\n| unit | moves as one | `engine/rules.py` |\n", CODE, TEST, ["§1 unit: no test mentions it"]),
        (DOCUMENT + "\n| unit | moves as one | `engine/rules.py` |\n", CODE, TEST + "# §1 unit: two rows\n", []),
    ],
)
def test_what_is_missing_is_named_and_fails(
    reporter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    document: str, code: str, test: str, missing: list[str],
) -> None:  # fmt: skip
    repository(tmp_path, document, code, test)
    monkeypatch.setattr(reporter, "ROOT", tmp_path)
    assert reporter.main(["--check"]) == bool(missing)
    assert capsys.readouterr().err.splitlines() == missing


def test_the_table_shows_code_and_tests_of_the_rules_asked_for(
    reporter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository(tmp_path, DOCUMENT, CODE, TEST)
    monkeypatch.setattr(reporter, "ROOT", tmp_path)
    assert reporter.main(["P3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "P3",
        "    code   python/foldline/engine/rules.py",
        "    tests  tests/unit/test_rules.py (1)",
    ]
    assert reporter.main(["Q9"]) == 2


def test_faults_that_tests_name_follow_the_rules_and_need_no_entry(
    reporter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository(tmp_path, DOCUMENT, CODE, TEST + 'def test_loops() -> None:\n    """XA1."""\n')
    monkeypatch.setattr(reporter, "ROOT", tmp_path)
    assert reporter.main([]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["XA1", "    tests  tests/unit/test_rules.py (1)"]
    assert reporter.main(["--check"]) == 0
