"""The client `acpx` of the npm registry drives `agentcli acp`."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import npm
from tests.app.running import Place, call, wait_until

pytestmark = pytest.mark.slow

SLOW = {"text": "one two three four five six", "chunk": 4, "delay_ms": 2_000}
WRITE = {"tool_calls": [call("file_write", path="made", content="x\n")]}


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder with `acpx` and a `node` that is new enough for it."""
    return npm.installed("acpx@0.19.1")


def acpx(programs: Path, place: Place, script: str, *arguments: str) -> subprocess.Popen[str]:
    agent = shlex.join([sys.executable, "-m", "agentcli", "acp", "-m", script])
    command = [str(programs / "node"), str(programs / "acpx"), "--agent", agent, "--cwd", str(place.folder)]
    environment = {**place.environment, "HOME": str(place.folder.parent)}
    return subprocess.Popen(
        [*command, "--format", "json", *arguments],
        cwd=place.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, err = process.communicate(timeout=60)
    assert out, err
    return [json.loads(line) for line in out.splitlines()]


def updates(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["params"]["update"] for one in messages if one.get("method") == "session/update"]


def told(messages: list[dict[str, Any]]) -> list[str]:
    """The transcript in words: requests of both sides, updates, stop reasons."""
    lines = []
    for one in messages:
        if one.get("method") == "session/update":
            update = one["params"]["update"]
            text = update.get("content", {}).get("text", "") if isinstance(update.get("content"), dict) else ""
            lines.append(f"{update['sessionUpdate']} {update.get('status', '') or text}".strip())
        elif "method" in one:
            lines.append(one["method"])
        elif "stopReason" in one.get("result", {}):
            lines.append(one["result"]["stopReason"])
    return lines


def stop_reason(messages: list[dict[str, Any]]) -> str:
    found = [one["result"]["stopReason"] for one in messages if "stopReason" in (one.get("result") or {})]
    assert len(found) == 1, messages
    return str(found[0])


def test_a_transcript_of_one_prompt(programs: Path, place: Place) -> None:
    (place.folder / "a.py").write_text('print("hi")\n')
    script = place.script({"text": "I look.", "tool_calls": [call("file_read", path="a.py")]}, {"text": "It says hi."})
    process = acpx(programs, place, script, "--approve-all", "exec", "what does a.py say?")
    messages = ran(process)
    assert process.returncode == 0
    asked = [one["method"] for one in messages if "method" in one and not one["method"].startswith("fs/")]
    assert asked[:3] == ["initialize", "session/new", "session/update"]
    words = [
        line for line in told(messages) if line.split()[0] not in ("available_commands_update", "fs/read_text_file")
    ]
    assert words == [
        "initialize",
        "session/new",
        "session/prompt",
        "session_info_update",
        "agent_message_chunk I look.",
        "tool_call pending",
        "usage_update",
        "tool_call_update in_progress",
        "tool_call_update completed",
        "agent_message_chunk It says hi.",
        "usage_update",
        "end_turn",
    ]


@pytest.mark.full
@pytest.mark.parametrize(("flag", "is_made"), [("--approve-all", True), ("--deny-all", False)])
def test_its_answers_to_permission_requests_count(programs: Path, place: Place, flag: str, is_made: bool) -> None:
    messages = ran(acpx(programs, place, place.script(WRITE, {"text": "{{last_result}}"}), flag, "exec", "write"))
    assert "session/request_permission" in [one.get("method") for one in messages]
    assert stop_reason(messages) == "end_turn"
    assert (place.folder / "made").exists() is is_made


@pytest.mark.full
def test_its_interrupt_cancels_the_prompt(programs: Path, place: Place) -> None:
    process = acpx(programs, place, place.script(SLOW), "--approve-all", "exec", "go")
    assert process.stdout is not None
    lines = []
    while not lines or "agent_message_chunk" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr and process.stderr.read()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    messages = [json.loads(line) for line in (*lines, *rest.splitlines())]
    assert "session/cancel" in [one.get("method") for one in messages]
    assert stop_reason(messages) == "cancelled"
    wait_until(lambda: place.run("sessions", "list").out.count("go") == 1, "the stored prompt")
