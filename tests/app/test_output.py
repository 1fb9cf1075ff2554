"""What the command line writes: nothing in it steers a terminal, and an output that takes nothing is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, Ran, call
from tests.app.terminal import Open

pytestmark = pytest.mark.slow  # each test starts the program

TITLE = "\x1b]0;owned\x07"
CLIPBOARD = "\x1b]52;c;b3duZWQ=\x07"
CLEAR = "\x1b[2J"
# What may steer a terminal: all controls but line ends, the eight-bit ones, and turned directions.
STEERING = {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e"} - {"\n"}


def steering_in(ran: Ran) -> set[str]:
    return STEERING & {*ran.out, *ran.err}


@pytest.fixture
def hostile(place: Place) -> Place:
    """A project whose names, settings and stored sessions hold what would steer a terminal."""
    commands = place.folder / ".agentcli" / "commands"
    commands.mkdir(parents=True)
    (commands / f"b{TITLE}.md").write_text("Hello")
    model = place.script(
        {"text": f"Hi {TITLE}{CLEAR}there", "tool_calls": [call("bash", command=f"echo {CLIPBOARD}x")]},
        {"text": "\x1b]8;;http://evil.example\x1b\\link"},
    )
    place.run("-m", model, "-p", f"a question {CLEAR}", "--name", f"named{TITLE}")
    place.run("-m", place.script({"text": "x"}), "-p", f"a title {TITLE}", "-C", str(place.folder))
    return place


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", "hi", "-m", "nobody/x"),
        ("sessions", "list"),
        ("sessions", "show", "named"),
        ("sessions", "show", f"no{TITLE}such"),
        ("config", "show"),
        ("config", "path"),
        ("config", "trust"),
        ("doctor",),
        ("models", "check", f"scripted/{TITLE}"),
        ("permissions", "explain", f"echo {TITLE}; touch b\u202ea"),
        ("tools", "run", f"no{TITLE}such"),
        ("-p", "hi", f"--flag{TITLE}"),
        ("tools", f"no{TITLE}such"),
    ],
    ids=" ".join,
)
def test_nothing_the_command_line_writes_steers_the_terminal(hostile: Place, arguments: tuple[str, ...]) -> None:
    if arguments == ("sessions", "show", "named"):
        arguments = ("sessions", "show", newest_named(hostile))
    ran = hostile.run(*arguments)
    assert ran.out + ran.err
    assert not steering_in(ran)


def newest_named(place: Place) -> str:
    sessions = json.loads(place.run("sessions", "list", "--json").out)
    return str(next(one["id"] for one in sessions if one["name"]))


def test_what_is_left_out_of_a_shown_session_is_in_its_json(hostile: Place) -> None:
    id = newest_named(hostile)
    assert "Hi there" in hostile.run("sessions", "show", id).out
    shown = json.loads(hostile.run("sessions", "show", id, "--json").out)["messages"]
    texts = [block.get("text") for message in shown for block in message["content"]]
    assert f"Hi {TITLE}{CLEAR}there" in texts


@pytest.mark.parametrize("flags", [(), ("--plain",)], ids=["live", "plain"])
def test_a_file_name_in_a_notice_does_not_set_the_title(
    open_terminal: Open, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    commands = tmp_path / "project" / ".agentcli" / "commands"
    commands.mkdir(parents=True)
    (commands / f"b{TITLE}.md").write_text("Hello")
    terminal = open_terminal([{"text": "x"}], *flags)
    terminal.see(r"b\.md\s+is\s+not\s+trusted")
    assert TITLE.encode() not in terminal.written


def test_an_approval_shows_the_hidden_characters_of_a_command(place: Place) -> None:
    cat = "\N{CYRILLIC SMALL LETTER ES}at"
    assert "\\u0441at is not known to only read" in place.run("permissions", "explain", f"{cat} a").out


# An output that takes nothing.


@pytest.fixture
def full() -> Path:
    path = Path("/dev/full")
    if not path.exists():
        pytest.skip("needs /dev/full")
    return path


def run_into(place: Place, full: Path, *arguments: str) -> tuple[int, str]:
    with full.open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "agentcli", *arguments],
            cwd=place.folder,
            env=place.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    return done.returncode, done.stderr.decode()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", "hi"),
        ("-p", "hi", "--output-format", "json"),
        ("-p", "hi", "--output-format", "stream-json"),
        ("--help",),
        ("--version",),
        ("sessions", "show", "first"),
        ("sessions", "list", "--json"),
        ("sessions", "--help"),
        ("tools", "list"),
        ("tools", "run", "file_list"),
        ("permissions", "explain", "ls"),
        ("doctor",),
        ("demo",),
    ],
    ids=" ".join,
)
def test_an_output_that_cannot_be_written_is_one_clear_line(
    place: Place, full: Path, arguments: tuple[str, ...]
) -> None:
    model = place.script({"text": "x"})
    place.run("-m", model, "-p", "hi", "--name", "first")
    code, said = run_into(place, full, *(("-m", model) if arguments[0] == "-p" else ()), *arguments)
    assert (code, said) == (1, "agentcli: Could not write the output: No space left on device.\n")


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_answer_that_could_not_be_written_is_in_the_session(place: Place, full: Path, format: str) -> None:
    model = place.script({"text": "the answer"})
    run_into(place, full, "-m", model, "-p", "hi", "--name", "first", "--output-format", format)
    assert "the answer" in place.run("sessions", "show", "first").out


def in_bash(place: Place, rest: str) -> subprocess.CompletedProcess[bytes]:
    """The program with what stands behind its name on a command line, redirections included."""
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m agentcli {rest}"],
        cwd=place.folder,
        env=place.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arguments", ["--help", "tools list", "sessions list --json", "tools run file_list"])
def test_a_reader_that_has_left_is_not_an_error_to_tell(place: Place, arguments: str) -> None:
    assert in_bash(place, f"{arguments} | true").stderr == b""


def test_without_any_output_the_program_says_so(place: Place) -> None:
    ran = in_bash(place, f"-m {place.script({'text': 'x'})} -p hi >&-")
    assert (ran.returncode, ran.stderr) == (2, b"agentcli: Stdout is closed. Redirect it to a file, or to /dev/null.\n")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("closed", ["2>/dev/full", "2>&-", "2>&- 0<&-"])
@pytest.mark.parametrize(
    ("reply", "rest", "code"),
    [
        ({"text": "the answer"}, "-p hi --verbose --allow mcp__a__b", 0),
        ({"text": "the answer"}, "-p hi --max-turns no", 2),
        ({"error": {"kind": "invalid_request", "message": "no"}}, "-p hi", 1),
        ({"error": {"kind": "invalid_request", "message": "no"}}, "-p hi --output-format json --allow mcp__a__b", 1),
    ],
)
def test_a_stderr_that_takes_nothing_changes_no_exit_code(
    place: Place, full: Path, closed: str, reply: dict[str, Any], rest: str, code: int
) -> None:
    ran = in_bash(place, f"-m {place.script(reply)} {rest} {closed}")
    assert ran.returncode == code
    assert b"agentcli:" not in ran.stdout


def test_notices_that_nobody_can_read_do_not_end_a_run(hostile: Place, full: Path) -> None:
    model = hostile.script({"error": {"kind": "overloaded", "message": "No room."}}, {"text": "the answer"})
    with full.open("wb") as err:
        done = subprocess.run(
            [sys.executable, "-m", "agentcli", "-m", model, "-p", "go"],
            cwd=hostile.folder,
            env=hostile.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, b"the answer\n")


# Encodings.


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "env",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1:strict"}, {"PYTHONIOENCODING": "cp1252"}],
    ids=str,
)
def test_an_output_that_is_not_utf_8_takes_every_answer(place: Place, env: dict[str, str]) -> None:
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", **env}
    model = place.script({"text": "naïve → 🎉", "tool_calls": [call("think", thought="ü→")]}, {"text": "naïve → 🎉"})
    arguments = [sys.executable, "-m", "agentcli", "-m", model, "-p", "→?", "--verbose"]
    encoding = env["PYTHONIOENCODING"].partition(":")[0]
    for command in (arguments, [*arguments[:3], "sessions", "show", "0"]):
        ran = subprocess.run(
            command,
            cwd=place.folder,
            env={**place.environment, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False), ran.stderr
        assert "naïve → 🎉".encode(encoding, "backslashreplace") in ran.stdout


def test_json_is_utf_8_whatever_the_encoding_of_text_is(place: Place) -> None:
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    ran = place.run("-m", place.script({"text": "→ 🎉"}), "-p", "ü", "--output-format", "json", env=env)
    assert ran.result["result"] == "→ 🎉"
    assert json.loads(place.run("sessions", "list", "--json", env=env).out)[0]["title"] == "ü"
