"""However a one-shot run ends, its last line is a result object; only a usage error (exit code 2) has none."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.app.running import Place, Ran, Running, call, wait_until

FORMATS = ("json", "stream-json")
EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
every_signal = pytest.mark.parametrize("number", EXIT)
every_format = pytest.mark.parametrize("format", FORMATS)
SLOW = {"text": "one two three four five six", "chunk": 4, "delay_ms": 200}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def ended_with_a_result(ran: Ran, code: int, subtype: str) -> dict[str, object]:
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    assert "Exception ignored" not in ran.err
    assert [line["type"] for line in ran.lines].count("result") == 1
    assert (ran.result["subtype"], ran.result["is_error"]) == (subtype, True)
    assert len(ran.result) == 15
    return ran.result


def heeds_signals(running: Running) -> bool:
    """Python itself has got so far that the program could say what signals mean."""
    status = Path(f"/proc/{running.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) & 1 << signal.SIGTERM - 1)


# Signals.


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@every_format
@every_signal
def test_a_signal_before_anything_is_there(place: Place, number: signal.Signals, format: str) -> None:
    with place.start("-m", place.script(SLOW), "-p", "go", "--output-format", format) as running:
        wait_until(lambda: heeds_signals(running), "the program's first line")
        running.signal(number)
        ended_with_a_result(running.left(), EXIT[number], "interrupted")


@pytest.mark.parametrize("delay_s", [0.1, 0.15, 0.2, 0.25, 0.3])
def test_a_signal_while_it_starts(place: Place, delay_s: float) -> None:
    with place.start("-m", place.script(SLOW), "-p", "go", f"--output-format={FORMATS[0]}") as running:
        time.sleep(delay_s)
        running.signal(signal.SIGINT)
        ended_with_a_result(running.left(), 130, "interrupted")


def test_a_signal_while_it_waits_for_its_prompt(place: Place) -> None:
    with place.start("-m", place.script(SLOW), "-p", "-", "--output-format", "json", stdin=True) as running:
        time.sleep(0.5)
        running.signal(signal.SIGTERM)
        ended_with_a_result(running.left(), 143, "interrupted")


@every_format
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal(place: Place, second: signal.Signals, format: str) -> None:
    stubborn = call("bash", command="trap '' TERM; touch begun; sleep 30; sleep 30")
    replies = ({"tool_calls": [stubborn], "usage": {"input_tokens": 7}}, {"text": "never"})
    arguments = ("-m", place.script(*replies), "-p", "go", "--output-format", format)
    with place.start(*arguments, "--permission-mode", "bypassPermissions") as running:
        wait_until((place.folder / "begun").exists, "the command")
        running.signal(signal.SIGTERM)
        time.sleep(0.1)
        running.signal(second)
        result = ended_with_a_result(running.left(), EXIT[second], "interrupted")
    assert result["usage"]["input_tokens"] == 7  # type: ignore[index]
    assert result["session_id"]


def test_a_second_signal_ends_a_run_whose_output_nobody_reads(place: Place) -> None:
    model = place.script({"text": "x" * 3_000_000, "chunk": 3_000_000})
    command = [sys.executable, "-m", "agentcli", "-m", model, "-p", "go", "--output-format", "json"]
    with subprocess.Popen(command, cwd=place.folder, env=place.environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.read(10)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
