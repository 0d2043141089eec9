"""``foldline demo`` as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def demo(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foldline", "demo", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=170, check=False)


def test_the_shipped_session_folds_and_its_questions_are_answered(tmp_path: Path) -> None:
    done = demo("--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (session,) = json.loads(done.stdout.splitlines()[-1])["sessions"]
    assert session["verify"] == {"ok": True, "faults": []}
    assert session["folds"] >= 3
    assert session["rows_total"] >= 300 + session["folds"]
    assert session["rows_archived"] == session["rows_total"] - session["rows_active"]
    assert [s["found"] for s in session["searches"]] == [True, True, True]
    assert "folds (" in done.stderr
    assert "A fold puts old rows into one summary row" in done.stderr
    assert (session["forecast_over_window"] == 0) == ("FORECAST_OVER_WINDOW" not in done.stderr)
    assert not list(tmp_path.iterdir()), "the demo leaves nothing behind"


def test_a_file_of_ones_own_is_played(tmp_path: Path) -> None:
    messages = []
    for number in range(40):
        messages.append({"role": "user", "content": f"Question {number}: " + "what about the ingress queue? " * 30})
        messages.append({"role": "assistant", "content": f"Answer {number}: " + "it is drained twice a day. " * 30})
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(messages))
    done = demo("--file", str(file), "--window", "4000", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (session,) = json.loads(done.stdout.splitlines()[-1])["sessions"]
    assert session["requests"] == 40
    assert session["folds"] >= 2
    assert session["verify"]["ok"]
    assert all(s["found"] for s in session["searches"])


def test_a_file_of_no_known_shape_is_refused_with_the_shapes(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"neither": "nor"}')
    done = demo("--file", str(file), cwd=tmp_path)
    assert done.returncode == 1
    assert f"FORMAT_INVALID: {file}: " in done.stderr
    assert "chat messages" in done.stderr
    file.write_bytes(b"\xff\xfe")
    done = demo("--file", str(file), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"FORMAT_INVALID: {file}: " in done.stderr


def test_requests_that_are_forecast_over_the_window_are_counted_and_told(tmp_path: Path) -> None:
    """L3: with a window that not even the request fits, every one of them."""
    file = tmp_path / "chat.json"
    messages = [{"role": "user", "content": "word " * 500}, {"role": "assistant", "content": "done"}]
    file.write_text(json.dumps(messages * 3))
    done = demo("--file", str(file), "--window", "400", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (session,) = json.loads(done.stdout.splitlines()[-1])["sessions"]
    assert session["forecast_over_window"] == session["requests"] == 3
    assert "3 requests were forecast over the window" in done.stderr


def test_a_window_of_nothing_is_refused_as_an_option(tmp_path: Path) -> None:
    for window in ("0", "-1", "99", "x"):
        done = demo("--window", window, cwd=tmp_path)
        assert done.returncode == 2
        assert "--window" in done.stderr
