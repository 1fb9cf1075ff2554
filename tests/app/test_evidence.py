"""Claims of final answers, checked against the log: in results, exit codes, on the screen, in the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent
from tests.app.running import Place, call
from tests.app.terminal import Open

ALLOWS = ("--permission-mode", "bypassPermissions")
JSON = ("--output-format", "json")
PASSES = "printf '3 passed in 0.10s\\n'"
FAILS = "printf '1 failed, 2 passed in 0.10s\\n'; exit 1"
TRUE = (
    {"tool_calls": [call("file_write", path="a.py", content="x = 1\n")]},
    {"tool_calls": [call("bash", command="sh ./run_tests.sh")]},
    {"text": "I created `a.py`. All 3 tests pass."},
)


@pytest.fixture
def checked(place: Place) -> Place:
    """A project whose tests pass."""
    (place.folder / "run_tests.sh").write_text(f"{PASSES}\n")
    return place


def verdicts(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(claim["kind"], claim["verdict"]) for claim in result["claims"]]


@pytest.mark.slow
def test_true_claims_are_verified_by_entries_of_the_log(checked: Place) -> None:
    ran = checked.run("-m", checked.script(*TRUE), "-p", "go", *JSON, *ALLOWS, "--require-evidence")
    assert (ran.code, ran.result["subtype"]) == (0, "success")
    assert verdicts(ran.result) == [("file_created", "verified"), ("tests_pass", "verified")]
    assert [claim["text"] for claim in ran.result["claims"]] == ["I created a.py.", "All 3 tests pass."]
    assert ran.result["claims"][1]["entries"] == ["call_2_1"]
    shown = checked.run("sessions", "show", ran.result["session_id"], "--json").out
    assert ran.result["claims"][0]["entries"][0] in shown


@pytest.mark.slow
def test_false_claims_end_with_57_where_evidence_is_required(checked: Place) -> None:
    (checked.folder / "run_tests.sh").write_text(f"{FAILS}\n")
    ran = checked.run("-m", checked.script(*TRUE), "-p", "go", *JSON, *ALLOWS, "--require-evidence")
    assert (ran.code, ran.result["subtype"], ran.result["is_error"]) == (57, "error_evidence", True)
    assert ran.result["terminal_reason"] == "evidence_missing"
    assert verdicts(ran.result) == [("file_created", "verified"), ("tests_pass", "refuted")]
    ran = checked.run("-m", checked.script({"text": "All tests pass."}), "-p", "go", *JSON)
    assert (ran.code, ran.result["subtype"]) == (0, "success")
    assert verdicts(ran.result) == [("tests_pass", "unverified")]


def test_text_mode_tells_what_is_not_verified(place: Place) -> None:
    model = place.script({"text": "I created `a.py`. All tests pass."})
    ran = place.run("-m", model, "-p", "go", "--require-evidence")
    assert (ran.code, ran.out) == (57, "I created `a.py`. All tests pass.\n")
    assert "Not verified (file_created): I created a.py.\n" in ran.err
    assert "Not verified (tests_pass): All tests pass.\n" in ran.err
    ran = place.run("-m", model, "-p", "go")
    assert (ran.code, ran.err) == (0, "")


def test_a_json_stream_ends_with_57_if_one_answer_lacks_evidence(place: Place) -> None:
    replies = ({"text": "All tests pass."}, {"text": "Hello."})
    lines = "".join(
        json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n" for text in ("one", "two")
    )
    flags = ("--output-format", "stream-json", "--input-format", "stream-json", "--require-evidence")
    ran = place.run("-m", place.script(*replies), "-p", *flags, stdin=lines)
    assert ran.code == 57
    assert [result["subtype"] for result in ran.of("result")] == ["error_evidence", "success"]
    assert [verdicts(result) for result in ran.of("result")] == [[("tests_pass", "unverified")], []]


def test_a_run_before_the_last_change_is_not_evidence(checked: Place) -> None:
    replies = (
        {"tool_calls": [call("bash", command="sh ./run_tests.sh")]},
        {"tool_calls": [call("file_write", path="a.py", content="x = 1\n")]},
        {"text": "All tests pass."},
    )
    ran = checked.run("-m", checked.script(*replies), "-p", "go", *JSON, *ALLOWS)
    assert verdicts(ran.result) == [("tests_pass", "unverified")]


@pytest.mark.slow
def test_a_run_of_an_earlier_turn_is_evidence_after_a_resume(checked: Place) -> None:
    first = checked.run("-m", checked.script(*TRUE), "-p", "go", *JSON, *ALLOWS)
    again = checked.script({"text": "Yes. All 3 tests pass, and I created `a.py`."})
    ran = checked.run("-m", again, "-r", first.result["session_id"], "-p", "sure?", *JSON)
    assert sorted(verdicts(ran.result)) == [("file_created", "verified"), ("tests_pass", "verified")]
    (checked.folder / "a.py").write_text("y = 2\n")
    ran = checked.run("-m", again, "-r", first.result["session_id"], "-p", "sure?", *JSON)
    assert sorted(verdicts(ran.result)) == [("file_created", "unverified"), ("tests_pass", "verified")]


def test_a_denied_command_is_not_evidence(checked: Place) -> None:
    replies = ({"tool_calls": [call("bash", command="sh ./run_tests.sh")]}, {"text": "All tests pass."})
    ran = checked.run("-m", checked.script(*replies), "-p", "go", *JSON, "--deny", "bash")
    assert verdicts(ran.result) == [("tests_pass", "unverified")]


def test_the_library_gives_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"text": "I created `a.py`."}) + "\n")
    done = Agent(model=f"scripted/{script}", cwd=work).run_sync("go")
    assert [(claim.kind, claim.verdict, claim.text) for claim in done.claims] == [
        ("file_created", "unverified", "I created a.py.")
    ]


@pytest.mark.slow
def test_the_terminal_says_so_after_the_answer(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "I created `a.txt`. All tests pass."}], "go")
    terminal.see(r"\?.a.txt: no change recorded · \?.tests: no run in the log\n")


@pytest.mark.slow
def test_the_lines_can_be_turned_off(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "All tests pass."}], "go", AGENTCLI_EVIDENCE_SHOW="false")
    terminal.see("All tests pass")
    assert "? tests" not in terminal.settle()
