#!/usr/bin/env python3
"""Generates the typed Python stubs of the contract into ``python/foldline/v1``.

    python scripts/gen_protos.py           regenerate
    python scripts/gen_protos.py --check   regenerate beside, fail where the committed stubs differ

The validation rules of the contract import ``buf/validate/validate.proto``, whose module no package ships for
the standard protobuf runtime. It is generated below our own package, since a top-level ``buf`` would collide
with any other distribution that does the same; the one import path is rewritten accordingly.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PROTO = ROOT / "proto"
PACKAGE = Path("foldline/v1")
STUBS = ROOT / "python" / PACKAGE
VENDORED = PACKAGE / "_third_party"
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"

IMPORT = re.compile(r"^from buf\.validate import validate_pb2", re.MULTILINE)
REWRITTEN = f"from {'.'.join(VENDORED.parts)}.buf.validate import validate_pb2"
INIT = '"""Generated from the contract by ``scripts/gen_protos.py``; the import path is the proto package."""\n'


def compile_protos(out: Path, files: list[Path], *plugins: str) -> None:
    """Runs protoc with ``plugins`` writing to ``out``.

    Raises:
        SystemExit: protoc refused the files.
    """
    includes = [f"-I{path}" for path in (PROTO / "third_party", PROTO, WELL_KNOWN)]
    targets = [f"--{plugin}={'quiet:' if 'mypy' in plugin else ''}{out}" for plugin in plugins]
    if protoc.main(["protoc", *includes, *targets, *map(str, files)]) != 0:
        raise SystemExit("protoc failed")


def generate(out: Path) -> Path:
    """Writes all stubs below ``out`` and returns their folder."""
    files = sorted((PROTO / PACKAGE).glob("*.proto"))
    services = [file for file in files if file.stem.endswith("_service")]
    (out / VENDORED).mkdir(parents=True)
    compile_protos(out, files, "python_out", "mypy_out")
    compile_protos(out, services, "grpc_python_out", "mypy_grpc_out")
    compile_protos(out / VENDORED, [PROTO / "third_party/buf/validate/validate.proto"], "python_out", "mypy_out")
    for folder in (PACKAGE, VENDORED, VENDORED / "buf", VENDORED / "buf/validate"):
        (out / folder / "__init__.py").write_text(INIT)
    for stub in sorted((out / PACKAGE).rglob("*.py*")):
        stub.write_text(IMPORT.sub(REWRITTEN, stub.read_text()))
    return out / PACKAGE


def stubs_in(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*.py*") if "__pycache__" not in path.parts}


def differences(fresh: Path, kept: Path) -> list[str]:
    """Names what differs between two folders of stubs, one line a file."""
    new, old = stubs_in(fresh), stubs_in(kept)
    lines = [f"missing: {path}" for path in sorted(new - old)] + [f"stale: {path}" for path in sorted(old - new)]
    return lines + [
        f"differs: {path}" for path in sorted(new & old) if not filecmp.cmp(fresh / path, kept / path, shallow=False)
    ]


def replace(fresh: Path, kept: Path) -> None:
    for path in stubs_in(kept) - stubs_in(fresh):
        (kept / path).unlink()
    for path in stubs_in(fresh):
        (kept / path).parent.mkdir(parents=True, exist_ok=True)
        (kept / path).write_bytes((fresh / path).read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the Python stubs of the contract.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the committed stubs differ")
    check = parser.parse_args().check
    # protoc finds the plugins of mypy-protobuf on PATH, which an interpreter run without activation lacks.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        if not check:
            replace(fresh, STUBS)
            return 0
        found = differences(fresh, STUBS)
    if found:
        print("stubs differ from the contract; run scripts/gen_protos.py", *found, sep="\n", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
