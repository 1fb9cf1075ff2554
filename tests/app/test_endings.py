"""However a one-shot run ends, its last line is a result object; only a usage error (exit code 2) has none."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import PATIENCE_S, Place, Ran, Running, call, wait_until

pytestmark = pytest.mark.slow  # each test starts the program

FORMATS = ("json", "stream-json")
EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
every_signal = pytest.mark.parametrize("number", EXIT)
every_format = pytest.mark.parametrize("format", FORMATS)
SLOW = {"text": "one two three four five six", "chunk": 4, "delay_ms": 200}


def ended_with_a_result(ran: Ran, code: int, subtype: str) -> dict[str, object]:
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    assert "Exception ignored" not in ran.err
    assert [line["type"] for line in ran.lines].count("result") == 1
    assert (ran.result["subtype"], ran.result["is_error"]) == (subtype, True)
    assert len(ran.result) == 16
    return ran.result


def heeds_signals(running: Running) -> bool:
    """Python itself has got so far that the program could say what signals mean."""
    status = Path(f"/proc/{running.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) & 1 << signal.SIGTERM - 1)


# Signals.


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@every_format
@every_signal
def test_a_signal_before_anything_is_there(place: Place, number: signal.Signals, format: str) -> None:
    with place.start("-m", place.script(SLOW), "-p", "go", "--output-format", format) as running:
        wait_until(lambda: heeds_signals(running), "the program's first line")
        running.signal(number)
        ended_with_a_result(running.left(), EXIT[number], "interrupted")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("delay_s", [0.02, 0.05, 0.1, 0.15, 0.2])
def test_a_signal_while_it_starts(place: Place, delay_s: float) -> None:
    with place.start("-m", place.script(SLOW), "-p", "go", f"--output-format={FORMATS[0]}") as running:
        wait_until(lambda: heeds_signals(running), "the program's first line")
        time.sleep(delay_s)
        running.signal(signal.SIGINT)
        ended_with_a_result(running.left(), 130, "interrupted")


def test_a_signal_while_it_waits_for_its_prompt(place: Place) -> None:
    with place.start("-m", place.script(SLOW), "-p", "-", "--output-format", "json", stdin=True) as running:
        time.sleep(0.5)
        running.signal(signal.SIGTERM)
        ended_with_a_result(running.left(), 143, "interrupted")


@pytest.mark.sampled(1)
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


@pytest.mark.sampled(2)
@every_format
@pytest.mark.parametrize("attempt", range(3))
def test_signals_that_come_once_the_result_is_out_change_nothing(place: Place, format: str, attempt: int) -> None:
    replies = ({"text": "y" * 30_000}, {"error": {"kind": "invalid_request", "message": "no"}})
    for reply, code in zip(replies, (0, 1), strict=True):
        command = [sys.executable, "-m", "agentcli", "-m", place.script(reply), "-p", "go", "--output-format", format]
        with subprocess.Popen(command, cwd=place.folder, env=place.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE) as process:  # fmt: skip
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while not lines[-1].startswith(b'{"type":"result"'):
                lines.append(process.stdout.readline())
            if format == "stream-json":
                time.sleep(0.02)  # more might have come
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                process.send_signal(number)
            assert process.stdout.read() == b""
            assert process.wait(PATIENCE_S) == code


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
        assert process.wait(PATIENCE_S) == 143


# Before the model is asked. The script's first reply would cost a dollar.

PAID = {"text": "paid", "usage": {"input_tokens": 10, "cost_usd": 1.0}}


def unpaid(ran: Ran, *says: str, code: int = 1, subtype: str = "error_during_execution") -> None:
    """It ended with a result that says why, and no model was asked."""
    result = ended_with_a_result(ran, code, subtype)
    assert result["total_cost_usd"] == 0.0
    assert set(result["usage"].values()) == {0}  # type: ignore[attr-defined]
    for words in says:
        assert words in str(result["result"]) + ran.err


def ask(place: Place, *arguments: str, format: str = "json", **how: Any) -> Ran:
    return place.run("-m", place.script(PAID), "-p", "go", "--output-format", format, *arguments, **how)


UUID = "12345678-1234-4234-8234-123456789abc"


@every_format
def test_a_session_that_cannot_be_opened(place: Place, format: str) -> None:
    assert ask(place, "--session-id", UUID).code == 0
    unpaid(ask(place, "-r", "nope", format=format), "nope", "sessions list")
    unpaid(ask(place, "--session-id", UUID, format=format), f"--resume {UUID}")
    slow = place.script({"tool_calls": [call("bash", command="touch begun; sleep 30")]})
    with place.start("-m", slow, "-p", "go", "-c", "--permission-mode", "bypassPermissions") as running:
        wait_until((place.folder / "begun").exists, "the command")
        ran = ask(place, "-r", UUID, format=format)
        unpaid(ran, "open in another agentcli")
        assert ran.result["session_id"] == UUID
        running.signal(signal.SIGINT)
        running.left()


def test_a_model_that_cannot_be_had(place: Place) -> None:
    unpaid(place.run("-m", "scripted/missing.jsonl", "-p", "go", "--output-format=json"), "missing.jsonl")


def test_an_argument_that_is_not_text(place: Place) -> None:
    unpaid(
        place.run("-m", place.script(PAID), "-p", "x", "--output-format", "json", "-r", b"\xff\xfe"),
        "There is no session",
    )


def _damage(database: Path) -> None:
    database.write_bytes(b"\xa5" * 5_000)


def _newer(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA user_version = 99")


def _folder(database: Path) -> None:
    database.unlink()
    database.mkdir()


@pytest.mark.parametrize(
    ("spoil", "arguments", "says"),
    [
        (_damage, ("-c",), "damaged"),
        (_damage, ("-r", "0"), "damaged"),
        (_newer, (), "newer agentcli"),
        (_newer, ("-c",), "newer agentcli"),
        (_folder, (), "sessions.db"),
    ],
)
def test_a_database_that_is_unusable(
    place: Place, spoil: Callable[[Path], None], arguments: tuple[str, ...], says: str
) -> None:
    assert ask(place).code == 0
    spoil(place.home / "state" / "sessions.db")
    before = sorted(path.name for path in (place.home / "state").glob("sessions*"))
    unpaid(ask(place, *arguments), says, str(place.home / "state" / "sessions.db"))
    assert before == sorted(path.name for path in (place.home / "state").glob("sessions*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_settings_that_cannot_be_read_are_a_usage_error(place: Place) -> None:
    place.home.mkdir(mode=0)
    ran = ask(place)
    assert (ran.code, ran.out, "config.toml" in ran.err, "Traceback" in ran.err) == (2, "", True, False)


@pytest.mark.full
@pytest.mark.parametrize("in_the_way", ["home", "home/state"])
def test_a_home_that_is_a_file_and_one_that_is_not_needed(place: Place, in_the_way: str) -> None:
    file = place.folder.parent / in_the_way
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    unpaid(ask(place), "Could not write to", "--no-session")
    assert without_a_home(place)


def without_a_home(place: Place) -> bool:
    """--no-session runs tools that keep something beside the project."""
    replies = ({"tool_calls": [call("bash", command="echo hi > made"), call("file_write", path="b", content="x")]},)
    model = place.script(*replies, {"text": "ok"})
    ran = place.run("-m", model, "-p", "go", "--no-session", "--verbose", "--permission-mode", "bypassPermissions")
    assert (ran.code, ran.out) == (0, "ok\n"), ran
    assert "Traceback" not in ran.err
    return (place.folder / "made").exists() and (place.folder / "b").exists()


@contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    if os.geteuid() or subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode:
        pytest.skip("only root can mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", arguments[-1]], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """By a mount where root runs this, whom permission bits do not hold."""
    if os.geteuid() == 0:
        with mounted("--bind", folder, folder):
            subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
            yield
        return
    before = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
    for path, mode in before.items():
        path.chmod(mode & 0o555)
    try:
        yield
    finally:
        for path, mode in before.items():
            path.chmod(mode)


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_read_only_home_can_be_read(place: Place, was_killed: bool) -> None:
    first = ask(place).result["session_id"]
    if was_killed:  # so that a write-ahead log stays behind
        replies = ({"text": "by then", "tool_calls": [call("bash", command="touch begun; sleep 30")]},)
        arguments = ("-m", place.script(*replies), "-p", "more", "-c", "--permission-mode", "bypassPermissions")
        with place.start(*arguments) as running:
            wait_until((place.folder / "begun").exists, "the command")
            running.signal(signal.SIGKILL)
            running.left()
    with read_only(place.home):
        unpaid(ask(place), "Could not write to", "--no-session")
        unpaid(ask(place, "-c"), "Could not write to")
        listed = json.loads(place.run("sessions", "list", "--json").out)
        assert [session["id"] for session in listed] == [first]
        shown = place.run("sessions", "show", str(first)).out
        assert "paid" in shown
        assert ("by then" in shown) == was_killed
        assert without_a_home(place)


def test_a_full_disk_is_reported_before_it_is_paid(place: Place) -> None:
    place.home.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=200k", "none", place.home):
        with pytest.raises(OSError):
            (place.home / "filler").write_bytes(b"x" * 400_000)
        ran = ask(place, "--verbose")
        unpaid(ran, "disk is full")
        assert without_a_home(place)


@every_format
def test_a_full_stdout_is_reported(place: Place, format: str) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "agentcli", "-m", place.script(PAID), "-p", "go", "--output-format", format],
            cwd=place.folder, env=place.environment, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
            check=False,
        )  # fmt: skip
    assert (ran.returncode, b"Traceback" in ran.stderr) == (1, False)
    assert b"No space left" in ran.stderr


def test_the_budget_of_a_continued_session(place: Place) -> None:
    first = ask(place).result["session_id"]
    ran = ask(place, "-c", "--max-budget-usd", "1")
    unpaid(ran, "budget", code=54, subtype="error_max_budget_usd")
    assert ran.result["num_turns"] == 0
    shown = json.loads(place.run("sessions", "show", str(first), "--json").out)["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant"]  # the message was taken back
    assert ask(place, "-c", "--max-budget-usd", "1.5").result["result"] == "paid"


def test_a_prompt_many_times_the_window(place: Place) -> None:
    text = "many words and more " * 200_000
    unpaid(place.run("-m", place.script(PAID), "-p", "-", "--output-format=json", stdin=text), "window", "was removed")
    ran = place.run("-m", place.script(PAID), "-p", "-", stdin=text[:400_000])
    assert (ran.code, ran.out) == (0, "paid\n")


# Jobs.

JOB = {"tool_calls": [call("bash", command="echo $$ > pid; exec sleep 60", background=True)]}
UNCONFINED = ("--permission-mode", "bypassPermissions", "--sandbox", "danger-full-access")


def is_gone(pid: Path) -> bool:
    try:
        os.kill(int(pid.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("format", ["text", *FORMATS])
def test_jobs_that_run_at_the_end_are_ended_and_named(place: Place, format: str) -> None:
    replies = (JOB, {"tool_calls": [call("bash", command="until test -s pid; do sleep 0.01; done")]}, {"text": "ok"})
    ran = place.run("-m", place.script(*replies), "-p", "go", "--output-format", format, *UNCONFINED)
    assert ran.code == 0
    assert "A job was still running and stopped with the session: job_" in ran.err
    assert "exec sleep 60" in ran.err
    assert is_gone(place.folder / "pid")
    if format == "stream-json":
        assert [line["text"] in ran.err for line in ran.of("system", "notice")] == [True]
    if format != "text":
        assert ran.result["subtype"] == "success"


@every_signal
def test_a_signal_ends_the_jobs_and_names_them(place: Place, number: signal.Signals) -> None:
    replies = (
        JOB,
        {"tool_calls": [call("bash", command="until test -s pid; do sleep 0.01; done; touch on; sleep 60")]},
    )
    arguments = ("-m", place.script(*replies), "-p", "go", "--output-format", "stream-json", *UNCONFINED)
    with place.start(*arguments) as running:
        wait_until((place.folder / "on").exists, "the second command")
        running.signal(number)
        ran = running.left()
    ended_with_a_result(ran, EXIT[number], "interrupted")
    assert "exec sleep 60" in ran.err
    assert len(ran.of("system", "notice")) == 1
    assert is_gone(place.folder / "pid")


def test_a_run_without_jobs_says_nothing_of_them(place: Place) -> None:
    replies = ({"tool_calls": [call("bash", command="true", background=True)]}, {"text": "ok", "delay_ms": 500})
    ran = place.run("-m", place.script(*replies), "-p", "go", *UNCONFINED)
    assert (ran.code, ran.out, ran.err) == (0, "ok\n", "")


def test_calls_that_cannot_be_read_are_an_error(place: Place) -> None:
    command = [sys.executable, "-m", "agentcli", "tools", "run"]
    with Path(os.devnull).open("wb") as unreadable:
        ran = subprocess.run(
            command, stdin=unreadable, capture_output=True, check=False, cwd=place.folder, env=place.environment
        )
    assert (ran.returncode, b"Could not read stdin" in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize("in_the_way", ["state", "state/tmp"])
def test_where_nothing_can_be_kept_calls_are_answered_and_the_installation_is_checked(
    place: Place, in_the_way: str
) -> None:
    (place.home / in_the_way).parent.mkdir(parents=True)
    (place.home / in_the_way).write_text("")
    calls = [{"id": "1", **call("bash", command="ls")}, {"id": "2", **call("file_list")}]
    ran = place.run("tools", "run", stdin="".join(json.dumps(one) + "\n" for one in calls))
    assert ran.code == 0
    assert [(answer["id"], answer["is_error"]) for answer in ran.lines] == [("1", True), ("2", False)]
    assert str(place.home / "state/tmp") in ran.lines[0]["content"]
    ran = place.run("doctor")
    assert ran.code == 1
    assert "✗ sandbox" in ran.out
    assert "✗ model" in ran.out  # the last one
    assert "No handlers" not in ran.err
