"""The screens of a session as a person sees them, at 40, 80 and 120 columns."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.app.recorded import EDITS
from tests.app.running import call
from tests.app.terminal import Open
from tests.conformance.replies import chat_chunk, chat_sse
from tests.conformance.servers import Reply, at_events, chat_server

pytestmark = pytest.mark.slow
widths = pytest.mark.parametrize("columns", [40, 80, 120])

ANSWER = """\
# A heading that is long enough for two rows of a narrow window

Some prose with **bold words**, `code` and a [link](https://example.com/a/b), long enough to be wrapped at any width
that one would use, and then some more of it, so that even the widest of the windows needs more than one row for it.

- an item that needs two rows at least, since it says what could be said in fewer words
  1. an inner item that needs two rows at least, since it says what could be said in fewer words
- [ ] a task that needs two rows at least, since it says what could be said in fewer words

> a quote that needs two rows at least, since it says what could be said in fewer words

| name | what it is for |
|---|---|
| one | the first row |
| two | the second row, which is rather long and wraps in a narrow window |

```python
line = "of code that is longer than the narrow window and stays whole"
```

这是一个很长的中文段落，里面有标点符号（括号），还有“引号”。它应该在合适的地方换行，不能在行首出现逗号。

The end.
"""


def answer_in(transcript: str) -> str:
    return transcript.partition("› go\n")[2].partition("\n› Ask")[0]


@pytest.mark.sampled(1)
@widths
def test_a_streamed_answer_ends_as_the_screen_that_it_would_be_at_once(open_terminal: Open, columns: int) -> None:
    shown = []
    for pieces in ({}, {"chunk": 3, "delay_ms": 1}, {"chunk": 17, "delay_ms": 3}):
        terminal = open_terminal([{"text": ANSWER, **pieces}], "--no-session", "go", columns=columns)
        terminal.see(r"The end\.\n\n› Ask")
        shown.append(answer_in(terminal.transcript()))
        terminal.close()
    assert shown[0] == shown[1] == shown[2]
    assert "  1. an inner item" in shown[0]
    assert all(len(row) <= columns for row in shown[0].split("\n"))


@widths
def test_rows_end_between_words_and_hang_from_their_marks(open_terminal: Open, columns: int) -> None:
    terminal = open_terminal([{"text": ANSWER}], "--no-session", "go", columns=columns)
    terminal.see(r"The end\.\n\n› Ask")
    rows = answer_in(terminal.transcript()).split("\n")
    words = set(ANSWER.split())
    prose = [row for row in rows if row.startswith(("Some", "that one", "  1.", "- an"))]
    assert prose
    assert all(row.split()[-1].strip("`*") in " ".join(words) for row in prose)
    for first, second in pairwise(rows):
        if first.startswith(("- an", "- [ ]", "  1. ", "> a")) and second.strip():
            mark = re.match(r"- \[ \] |- |  1\. |> ", first)
            assert mark
            assert second.startswith(("- ", "  1. ", "> " if mark[0] == "> " else " " * len(mark[0])))


@widths
def test_with_wrap_terminal_paragraphs_are_one_line(open_terminal: Open, columns: int, tmp_path: Path) -> None:
    settings = tmp_path / "home" / "config"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text('[terminal]\nwrap = "terminal"\n')
    text = "word " * 60
    terminal = open_terminal([{"text": text + "end."}], "--no-session", "go", columns=columns)
    terminal.see(r"end\.\n\n› Ask")
    assert len(answer_in(terminal.transcript()).strip("\n").split("\n")[0]) == columns - (columns % 5 == 0)


@widths
def test_the_first_screen_says_where_with_what_and_what_was_read(
    open_terminal: Open, columns: int, tmp_path: Path
) -> None:
    (tmp_path / "project" / "AGENTS.md").write_text("Be kind.\n")
    subprocess.run(["git", "init", "-q", "-b", "topic"], cwd=tmp_path / "project", check=True)
    terminal = open_terminal([{"text": "said"}], columns=columns, HOME=str(tmp_path))
    screen = terminal.see("read AGENTS.md")
    assert " ".join(screen.partition("\n\n")[0].split()) == (
        f"agentcli {version()} · ~/project · topic · script.jsonl · ask before edits read AGENTS.md"
    )
    assert screen.split("\n")[-1] == "ask before edits · script.jsonl · topic"
    assert terminal.screen.title == "project · ready"


def version() -> str:
    return subprocess.run(
        [sys.executable, "-m", "agentcli", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[-1]


@pytest.mark.sampled(1)
@widths
def test_a_table_is_a_table_while_it_comes_in(open_terminal: Open, columns: int) -> None:
    table = "| name | use |\n|---|---|\n" + "".join(f"| row{n} | text {n} |\n" for n in range(6))
    slow = {"text": f"Look:\n\n{table}\nThe end.", "chunk": 4, "delay_ms": 60}
    terminal = open_terminal([slow], "--no-session", "go", columns=columns)
    screen = terminal.see("row2 │ text 2")
    assert re.search(r"Look:\n\nname │ use\n─────┼─+\nrow0 │ text 0\nrow1 │ text 1\nrow2 │ text 2\n", screen)
    assert "|" not in screen.partition("Look:")[2].partition("›")[0]
    at = terminal.row_of("name │ use")
    terminal.see(r"The end\.")
    assert terminal.row_of("name │ use") == at


@pytest.mark.sampled(1)
@widths
def test_a_call_is_named_while_its_arguments_come_in_below_the_whole_text(open_terminal: Open, columns: int) -> None:
    write = call("file_write", path="zz.py", content="pass\n" * 120)
    text = "I have read what is there. Now I write the new module for you."
    reply = {"text": text, "tool_calls": [write], "delay_ms": 60, "chunk": 12}
    terminal = open_terminal([reply, {"text": "Done."}], "--no-session", *EDITS, "go", columns=columns)
    screen = terminal.see(r"Writing zz\.py · [2-9]\d lines")
    assert text in " ".join(screen.split())
    terminal.see(r"✓ Write zz\.py")


@pytest.mark.sampled(1)
@widths
def test_a_server_that_reports_how_far_it_has_read_is_not_just_working(open_terminal: Open, columns: int) -> None:
    role = {"role": "assistant", "content": None}
    read = [chat_chunk(role, prompt_progress={"total": 1_019, "cache": 0, "processed": n}) for n in (0, 256, 1_019)]
    answer = Reply(
        chat_sse([*read, chat_chunk({"content": "Hi."}), chat_chunk({}, "stop")]), cut=at_events, pause_s=0.6
    )
    with chat_server([answer]) as server:
        keys = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-a-key"}
        terminal = open_terminal(None, "-m", "openai/test-model", "--no-session", "go", columns=columns, **keys)
        terminal.see(r"Reading the prompt · 256 of 1,019")
        screen = terminal.see(r"\nHi\.\n\n›")
    assert "Reading" not in screen


@pytest.mark.sampled(1)
@widths
def test_a_window_that_is_dragged_while_it_streams_loses_and_mixes_nothing(open_terminal: Open, columns: int) -> None:
    words = [f"w{number}x" for number in range(240)]
    terminal = open_terminal(
        [{"text": " ".join(words), "delay_ms": 8, "chunk": 6}], "--no-session", "go", columns=columns
    )
    terminal.see("w9x")
    for step in range(20):
        terminal.resize(40, columns + 2 * step)  # wider only: the emulator drops what a narrower window cuts
        terminal.settle(0.1)
    terminal.see(r"w239x\n\n› Ask")
    assert re.findall(r"w\d+x", terminal.transcript()) == words
    assert terminal.transcript().count("› Ask") == 1


@pytest.mark.full
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux, which wraps lines anew and tells of sizes late")
@pytest.mark.parametrize("is_idle", [False, True])
def test_dragging_a_tmux_window_loses_and_mixes_nothing(tmp_path: Path, is_idle: bool) -> None:
    words = [f"w{number}x" for number in range(240)]
    (tmp_path / "s.jsonl").write_text(json.dumps({"text": " ".join(words), "delay_ms": 10, "chunk": 6}) + "\n")
    socket = str(tmp_path / "tmux")

    def tmux(*arguments: str) -> str:
        ran = subprocess.run(
            ["tmux", "-S", socket, "-f", "/dev/null", *arguments], capture_output=True, text=True, check=False
        )
        return ran.stdout

    def see(text: str) -> str:
        deadline = time.monotonic() + 20
        while text not in (shown := tmux("capture-pane", "-p", "-J", "-S", "-")):
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)
        return shown

    command = (
        f"cd {tmp_path} && AGENTCLI_HOME={tmp_path}/home {sys.executable} -m agentcli --no-session -m scripted/s.jsonl"
    )
    tmux("new-session", "-d", "-x", "80", "-y", "24", command)
    try:
        see("› Ask")
        tmux("send-keys", "go", "Enter")
        see(words[-1] if is_idle else "w9x")
        for step in range(20):
            tmux("resize-window", "-x", str(45 + 17 * step % 70), "-y", str(24 + step % 4))
            time.sleep(0.1)
        tmux("resize-window", "-x", "90", "-y", "30")
        see(words[-1])
        time.sleep(1)
        shown = see("› Ask")
        assert re.findall(r"w\d+x", shown) == words
        assert shown.count("› Ask") == 1
        assert not re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", shown)
    finally:
        tmux("kill-server")


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "input": arguments}


@widths
def test_calls_say_what_happened_in_as_few_words_as_possible(open_terminal: Open, columns: int) -> None:
    path = "no/such/folder/with/a/long/name/module_that_is_not_there.py"
    items = [{"content": "read", "status": "completed"}, {"content": "write", "status": "in_progress"}]
    calls = [tool("file_read", path=path), tool("todo", items=items), tool("bash", command="sleep 30", background=True)]
    flags = ("--no-session", "--permission-mode", "bypassPermissions", "go")
    terminal = open_terminal([{"tool_calls": calls}, {"text": "done"}], *flags, columns=columns)
    screen = terminal.see(r"\ndone\n(?![\s\S]*Working)").partition("› go")[2]
    shown = "".join(screen.split())
    assert f"✗Read{path}doesnotexist." in shown
    assert "✓To-do·1of2done" in shown
    assert "▸write" not in shown, "the list stands above the input while the turn runs"
    assert "job_1started·/tasks" in shown
    assert not re.search(r"\d ms", screen)
    assert "1 job" in terminal.see("1 job").split("\n")[-1]


def test_a_to_do_list_stands_above_the_input_only_in_the_turn_that_wrote_it(open_terminal: Open) -> None:
    items = [{"content": "mend the parser", "status": "pending"}]
    waits = {"text": "slow " * 5, "chunk": 1, "delay_ms": 200}
    terminal = open_terminal([{"tool_calls": [tool("todo", items=items)]}, waits, waits], "go")
    terminal.see("mend the parser")
    terminal.see("› Ask")
    terminal.type("hello\r")
    terminal.see(r"› hello\n+slow")
    assert "mend the parser" not in terminal.text().rpartition("hello")[2]
