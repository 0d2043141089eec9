"""The contract as its tools see it: it compiles, passes buf, and the committed stubs are its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import google.rpc
import grpc_tools
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
BUF = str(Path(sysconfig.get_path("scripts")) / "buf")


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=120)


def compiled_by_protoc(out: Path, *includes: Path) -> subprocess.CompletedProcess[str]:
    files = sorted((PROTO / "foldline").rglob("*.proto"))
    paths = [f"-I{path}" for path in includes]
    return run(
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        *paths,
        "--include_imports",
        f"--descriptor_set_out={out}",
        *files,
    )


@pytest.mark.parametrize("with_packages", [True, False], ids=["beside-packaged-protos", "alone"])
def test_it_compiles_with_the_includes_of_a_host(tmp_path: Path, with_packages: bool) -> None:
    """A host's own copies of the common protos may stand behind the vendored ones, or be absent."""
    includes = [PROTO, PROTO / "third_party", Path(grpc_tools.__file__).parent / "_proto"]
    if with_packages:
        includes.append(Path(next(iter(google.rpc.__path__))).parents[1])
    result = compiled_by_protoc(tmp_path / "set.binpb", *includes)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_vendored_contracts_carry_their_licences() -> None:
    for file in (PROTO / "third_party").rglob("*.proto"):
        folder = PROTO / "third_party" / file.relative_to(PROTO / "third_party").parts[0]
        assert "Apache License" in (folder / "LICENSE").read_text()


def test_buf_lint_and_format_find_nothing() -> None:
    lint = run(BUF, "lint")
    assert (lint.returncode, lint.stdout) == (0, "")
    form = run(BUF, "format", "--diff", "--exit-code", "--path", "proto/foldline")
    assert (form.returncode, form.stdout) == (0, "")


@pytest.mark.parametrize(
    ("line", "instead", "complaint"),
    [
        ("  bool pinned = 4;\n", "", 'field "4" with name "pinned" on message "Row" was deleted'),
        ("  bool pinned = 4;\n", "  string pinned = 4;\n", 'Field "4" with name "pinned" on message "Row"'),
        ("", "", ""),
    ],
    ids=["deleted", "retyped", "untouched"],
)
def test_buf_breaking_sees_what_breaks_a_host(tmp_path: Path, line: str, instead: str, complaint: str) -> None:
    for name in ("kept", "changed"):
        shutil.copytree(PROTO, tmp_path / name / "proto")
        shutil.copy(ROOT / "buf.yaml", tmp_path / name)
    changed = tmp_path / "changed/proto/foldline/v1/row.proto"
    assert line in changed.read_text()
    changed.write_text(changed.read_text().replace(line, instead) if line else changed.read_text())
    result = run(BUF, "breaking", "--against", tmp_path / "kept", cwd=tmp_path / "changed")
    assert complaint in result.stdout
    assert (result.returncode == 0) == (complaint == "")


def test_the_committed_stubs_are_those_of_the_contract() -> None:
    """P28."""
    result = run(sys.executable, "scripts/gen_protos.py", "--check")
    assert (result.returncode, result.stderr) == (0, "")
