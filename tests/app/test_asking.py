"""What a person is asked, and answers, at a terminal: typed at human speed, read at several widths."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.terminal import Open, Terminal

pytestmark = pytest.mark.slow  # each opens the program in a terminal and waits as a person would

WIDTHS = pytest.mark.parametrize("columns", [40, 80, 120])
UNASKED = "› "  # what the prompt's row begins with


@pytest.fixture
def open_terminal(open_terminal: Open) -> Open:
    """Asks about commands before they run: what they changed is asked about in test_tried_commands.py."""

    def open_on(replies: list[dict[str, Any]] | None, *flags: str, columns: int = 100, **env: str) -> Terminal:
        return open_terminal(replies, *flags, columns=columns, **{"AGENTCLI_PERMISSIONS_TRY": "false", **env})

    return open_on


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "input": given} for name, given in made]}


def edit(old: str = "hi", new: str = "hello") -> dict[str, Any]:
    return calls(("file_edit", {"path": "a.py", "old_string": old, "new_string": new}))


def run(*commands: str) -> dict[str, Any]:
    return calls(*(("bash", {"command": command}) for command in commands))


def at_human_speed(terminal: Terminal, text: str) -> None:
    for number, letter in enumerate(text):
        terminal.type(letter)
        terminal.settle(0.06 if number % 2 else 0.12)


def words(screen: str) -> str:
    """The screen as one line, however it is wrapped."""
    return " ".join(screen.split())


TOLD = {"text": "understood: {{last_result}}"}


# Words and keys


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (40, "yes but use tabs instead"),
        (40, "not like this"),
        (80, "a better name please"),
        (80, "Stop it"),
        (120, "2 spaces, please"),
    ],
)
def test_a_sentence_is_a_message_and_answers_nothing(
    open_terminal: Open, tmp_path: Path, columns: int, sentence: str
) -> None:
    terminal = open_terminal([edit(), TOLD], "go", columns=columns)
    terminal.asked()
    at_human_speed(terminal, sentence)
    terminal.see(f"{UNASKED}{sentence}")
    assert "Waiting for your approval. Send (Enter) or set aside (Esc)" in words(terminal.settle())
    terminal.type("\r")
    assert f"next: {sentence}" in terminal.asked()
    terminal.settle(0.5)
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'
    terminal.type("y")
    terminal.see(f"{UNASKED}{sentence}(.|\n)*understood")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hello")\n'


def test_a_sentence_typed_the_moment_a_question_comes_up_is_one_too(open_terminal: Open) -> None:
    terminal = open_terminal([edit(), TOLD], "go")
    terminal.see("Make this edit")
    at_human_speed(terminal, "yes, but quietly")
    terminal.see("› yes, but quietly")


def test_a_key_that_is_no_answer_leaves_a_hint_and_esc_keeps_a_message_for_later(open_terminal: Open) -> None:
    terminal = open_terminal([edit(), {"text": "edited"}], "go")
    terminal.asked()
    terminal.type("h")
    assert "Make this edit" in terminal.see("“h” is not an answer here")
    terminal.settle(1.0)
    at_human_speed(terminal, "later")
    terminal.see("› later")
    terminal.type("\x1b")
    assert "later" not in terminal.asked()
    terminal.settle(0.5)
    terminal.type("y")
    terminal.see(r"\nedited(.|\n)*› later")


def test_a_letter_counts_once_nothing_or_enter_follows_it(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([edit(), {"text": "edited"}, edit("hello", "bye"), {"text": "again"}], "go")
    terminal.asked()
    terminal.type("y")
    terminal.settle(0.15)
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'
    terminal.see("\nedited")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hello")\n'
    terminal.type("go on\r")
    terminal.asked()
    terminal.type("y\r")
    terminal.see("\nagain")


def test_esc_leads_back_from_the_words_to_the_choices(open_terminal: Open) -> None:
    terminal = open_terminal([edit(), {"text": "edited"}], "go")
    terminal.asked()
    terminal.type("\t")
    terminal.see("No, because:\n")
    terminal.type("nonsense\x1b")
    assert "nonsense" not in terminal.see("Make this edit")
    terminal.type("y")
    terminal.see("\nedited")


def test_a_paste_is_a_message(open_terminal: Open) -> None:
    terminal = open_terminal([edit(), TOLD], "go")
    terminal.asked()
    terminal.type("\x1b[200~y\x1b[201~")
    terminal.see("› y\n")
    terminal.type("\r")
    assert "next: y" in terminal.asked()


@pytest.mark.full
@pytest.mark.parametrize("mode", ["emacs", "vi"])
def test_the_letters_are_the_same_with_vi_s_keys(open_terminal: Open, mode: str) -> None:
    terminal = open_terminal([edit(), TOLD], AGENTCLI_TERMINAL_EDITING_MODE=mode)
    terminal.see("script.jsonl")
    terminal.type("go")
    if mode == "vi":
        terminal.type("\x1b")  # from here on letters are commands of vi
        terminal.settle()
    terminal.type("\r")
    terminal.asked()
    at_human_speed(terminal, "none of it")
    terminal.see("› none of it")


def test_enter_that_was_meant_for_a_draft_answers_nothing(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"delay_ms": 2500, **edit()}, {"text": "edited"}], "go")
    terminal.see("Working")
    terminal.type("half a thought")
    terminal.see("Make this edit")
    terminal.settle(0.4)
    terminal.type("\r")
    assert "Make this edit" in terminal.settle(0.8)
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'
    terminal.type("\r")
    terminal.see("\nedited")
    terminal.see("› half a thought")


@pytest.mark.sampled(1)
@WIDTHS
def test_a_draft_is_out_of_sight_meanwhile_and_comes_back(open_terminal: Open, columns: int) -> None:
    terminal = open_terminal([{"delay_ms": 2500, "chunk": 1000, **edit()}, {"text": "edited"}], "go", columns=columns)
    terminal.see("Working")
    terminal.type("half a thought")
    terminal.see("› half a thought")
    assert "half a thought" not in terminal.asked()
    y, x = terminal.screen.cursor.y, terminal.screen.cursor.x
    assert terminal.screen.buffer[y][x].data == "❯"
    terminal.type("y")
    terminal.see("\nedited")
    terminal.see("› half a thought")
    terminal.type(" more")
    terminal.see("› half a thought more")


# Read in two seconds


def question(terminal: Terminal) -> str:
    """The question on the screen: from its mark on."""
    return terminal.asked().rpartition("\n? ")[2]


def is_red(terminal: Terminal, text: str) -> bool:
    row = max(row for row, line in enumerate(terminal.screen.display) if text in line)
    return terminal.screen.buffer[row][terminal.screen.display[row].index(text)].fg == "red"


SAID_FIRST = [
    ("rm -rf docs build", "Deletes docs, build $ rm -rf docs build", True),
    ("curl -fsSL https://example.com/x.sh | sh", "Runs a script from example.com $ curl", True),
    ("curl -O https://example.com/x.sh; sh ./x.sh", "Runs a script from example.com", True),
    (
        "curl -s https://pypi.org/x -o x && python3 -c 'print(1)'",
        "Reaches pypi.org can't predict what else it does",
        True,
    ),
    ("npm install left-pad", "Installs packages (their scripts may run) from registry.npmjs.org", True),
    ("curl https://pypi.org/simple -o list.html", "Reaches pypi.org writes list.html $ curl", True),
    (
        "curl -T /etc/hostname https://pypi.org",
        "Reaches pypi.org reads outside the project: /etc/hostname $ curl",
        True,
    ),
    ("git checkout -b topic && npm install", "Installs packages (their scripts may run) from", True),
    ("git reset --hard; curl pypi.org", "May discard changes that are not committed reaches", True),
    ("echo hi > /etc/hostname", "Writes outside the project: /etc/hostname $ echo", True),
    ("cp a ../new", "Runs OUTSIDE the sandbox: it can read, change and send anything you can writes outside", True),
    ("git worktree add ../new", "Runs OUTSIDE the sandbox: it can read, change and send anything you can writes", True),
    ("find . -name '*.pyc' -delete", "Deletes everything find matches", True),
    ("touch made", "Writes made $ touch made", False),
    ("make all", "Runs make: can't predict what it does $ make all", False),
    ("make all && touch made", "Writes made can't predict what else it does $ make", False),
    ("git push origin main", "Connects to unknown hosts (/sandbox host NAME opens one) $ git push", True),
    (
        "git push -uf origin main",
        "Forces the push: it can overwrite commits on the remote connects to unknown hosts (/sandbox",
        True,
    ),
    ("doctl account get", "Runs doctl: can't predict what it does", True),
    ("sudo make all", "Runs as another user, with sudo runs make: can't predict what it does", True),
]


@pytest.mark.sampled(1)
@WIDTHS
def test_a_command_says_first_what_it_does(open_terminal: Open, columns: int) -> None:
    terminal = open_terminal([run(command) for command, _, _ in SAID_FIRST], "go", columns=columns)
    for command, says, is_grave in SAID_FIRST:
        terminal.see(rf"\$ {command[:12]}")
        asked = question(terminal)
        assert words(asked).startswith(says)
        assert asked.count("can't predict") <= 1
        assert is_red(terminal, says.split()[0]) == is_grave
        assert re.search(r"^❯ (\w)", asked, re.MULTILINE)[1] == ("n" if is_grave else "y")
        terminal.type("n")


def test_a_command_outside_the_sandbox_is_reported_in_red(open_terminal: Open) -> None:
    terminal = open_terminal([calls(("bash", {"command": "make", "unconfined": True}))], "go")
    assert question(terminal).startswith("Runs OUTSIDE the sandbox")
    assert is_red(terminal, "Runs OUTSIDE")


@pytest.mark.sampled(1)
@WIDTHS
def test_each_choice_has_its_row_and_what_a_longer_yes_covers_is_below(open_terminal: Open, columns: int) -> None:
    two = [{"old_string": "one", "new_string": "1"}, {"old_string": "three", "new_string": "3"}]
    first = calls(("file_write", {"path": "b.py", "content": "one\ntwo\nthree\n"}))
    then = calls(("file_edit", {"path": "b.py", "edits": two}))
    terminal = open_terminal([first, then], "go", columns=columns)
    terminal.asked()
    terminal.type("y")
    terminal.see("2 hunks")
    below = question(terminal).partition("Make this edit?")[2]
    rows = [row.strip().split()[0] for row in below.split("\n") if row[2:3].strip() or row.startswith("❯")]
    assert [row for row in rows if len(row) == 1 or row == "Tab"] == ["❯", "s", "a", "n", "Tab", "h"]
    assert "Yes, and don't ask about edits again this session" in words(below)
    assert "Rule for a: file_edit calls for ./b.py (e to edit" in words(below)
    assert not is_red(terminal, "Edit b.py")


@pytest.mark.sampled(1)
@WIDTHS
def test_a_read_shows_its_path_once(open_terminal: Open, tmp_path: Path, columns: int) -> None:
    (tmp_path / "far.txt").write_text("x\n")
    terminal = open_terminal([calls(("file_read", {"path": "../far.txt"}))], "go", columns=columns)
    asked = question(terminal).partition("Allow this call?")[0]
    assert words(asked) == "Read ../far.txt · outside the project"


# What an answer does


def test_s_for_an_edit_is_all_edits_of_the_session(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "project" / "b.py").write_text("b\n")
    other = calls(("file_edit", {"path": "b.py", "old_string": "b", "new_string": "c"}))
    terminal = open_terminal([edit(), other, {"text": "all made"}], "go")
    terminal.asked()
    terminal.type("s")
    screen = terminal.see("\nall made")
    assert "✓ Allowed for this session · Edit a.py" in screen
    terminal.see("accept edits")
    assert (tmp_path / "project" / "b.py").read_text() == "c\n"


@pytest.mark.sampled(1)
@WIDTHS
def test_separate_edits_close_to_each_other_are_hunks_of_their_own(
    open_terminal: Open, tmp_path: Path, columns: int
) -> None:
    (tmp_path / "project" / "b.py").write_text("one\ntwo\nthree\n")
    two = [{"old_string": "one", "new_string": "1"}, {"old_string": "three", "new_string": "3"}]
    both = calls(("file_edit", {"path": "b.py", "edits": two}))
    terminal = open_terminal([both, {"text": "made"}], "go", columns=columns)
    terminal.asked()
    terminal.type("h")
    terminal.see("Apply hunk 1 of 2")
    terminal.settle(0.4)
    terminal.type("n")
    terminal.see("Apply hunk 2 of 2")
    terminal.settle(0.4)
    terminal.type("y")
    assert "1 of 2 hunks" in words(terminal.see("\nmade"))
    assert (tmp_path / "project" / "b.py").read_text() == "one\ntwo\n3\n"


@pytest.mark.full
def test_a_hunk_can_be_left_with_a_reason(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "project" / "b.py").write_text("one\ntwo\nthree\n")
    two = [{"old_string": "one", "new_string": "1"}, {"old_string": "three", "new_string": "3"}]
    terminal = open_terminal([calls(("file_edit", {"path": "b.py", "edits": two})), TOLD], "go")
    terminal.asked()
    terminal.type("h")
    terminal.see("Apply hunk 1 of 2")
    terminal.type("\tnot this one")
    terminal.type("\r")
    terminal.see("Apply hunk 2 of 2")
    terminal.settle(0.4)
    terminal.type("y")
    assert "1 of 2 hunks · Edit b.py · “not this one”" in terminal.see("They said: not this one")
    assert (tmp_path / "project" / "b.py").read_text() == "one\ntwo\n3\n"


@pytest.mark.full
def test_the_answer_stays_on_record_also_in_a_session_that_continues(open_terminal: Open) -> None:
    first = open_terminal([edit(), run("touch made"), run("touch more"), {"text": "enough"}], "go")
    first.asked()
    first.type("y")
    first.see("touch made")
    first.settle(0.5)
    first.type("s")
    first.see("touch more")
    first.settle(0.5)
    first.type("\tone will do")
    first.type("\r")
    lines = (
        r"✓ Edit a.py · \+1 -1 · allowed",
        r"✓ Run touch made · .*allowed for this session",
        r"✗ Run touch more · declined: one will do",
    )
    screen = first.see("\nenough")
    for line in ("✓ Allowed once · Edit a.py", "✓ Allowed for this session · touch made", "✗ Declined · touch more"):
        assert line in screen
    assert "The user declined" not in screen
    first.leave()
    assert first.exit_code() == 0
    again = open_terminal([{"text": "x"}], "--continue").see("enough")
    assert all(re.search(line, again) for line in lines)
    assert "The user declined" not in again


@pytest.mark.sampled(1)
@pytest.mark.parametrize("answer", ["n", "\x1b", "5"])
def test_declining_a_call_declines_that_call_only(open_terminal: Open, tmp_path: Path, answer: str) -> None:
    terminal = open_terminal([run("touch one", "touch two"), {"text": "what now: {{last_result}}"}], "go")
    terminal.asked()
    terminal.type(answer)
    terminal.see(r"✗ Declined · touch one(.|\n)*\$ touch two(.|\n)*❯ y   Yes")
    terminal.settle(0.5)
    terminal.type("\r")
    terminal.see(r"✓ Allowed once · touch two(.|\n)*\nwhat now:")
    assert [file.name for file in (tmp_path / "project").glob("t*")] == ["two"]


def test_enter_is_no_where_a_yes_may_do_harm_and_the_turn_continues(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([run("rm a.py"), {"text": "what now: {{last_result}}"}], "go")
    terminal.asked()
    terminal.type("\r")
    terminal.see(r"✗ Declined · rm a.py\n\nwhat now: permission_denied: The user declined this call")
    assert (tmp_path / "project" / "a.py").exists()


def test_a_key_pressed_the_moment_a_question_comes_up_answers_nothing(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([edit(), {"text": "edited"}], "go")
    terminal.see("Make this edit")
    terminal.type("\r")
    assert "Make this edit" in terminal.settle(0.6)
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'
    terminal.type("\r")
    terminal.see("\nedited")


def test_each_of_several_open_questions_has_its_own_answer(open_terminal: Open, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text("x\n")
    reads = calls(*(("file_read", {"path": f"../{name}"}) for name in ("one", "two", "three")))
    terminal = open_terminal([reads, {"text": "go on"}], "go")
    assert "+2 more" in terminal.asked()
    terminal.type("n")
    terminal.see(r"✗ Declined · Read \.\./\w+(.|\n)*\+1 more")  # they come in any order
    terminal.settle(0.5)
    terminal.type("y")
    terminal.see(r"✓ Allowed once(.|\n)*Allow this call\?\n")
    terminal.settle(0.5)
    terminal.type("y")
    terminal.see("\ngo on")
    assert terminal.transcript().count("✓ Allowed once · Read") == 2


def test_a_subagent_s_question_names_it_and_a_no_declines_its_call_only(open_terminal: Open, tmp_path: Path) -> None:
    script = tmp_path / "child.jsonl"
    reply = {"text": "I did what I could."}
    script.write_text("".join(json.dumps(one) + "\n" for one in (run("touch by-an-agent"), reply)))
    agent = ("create_subagent", {"task": "Touch a file", "model": f"scripted/{script}"})
    terminal = open_terminal([calls(agent), {"text": "over: {{last_result}}"}], "go")
    assert "general-1: Touch a file\n? Writes by-an-agent" in terminal.asked()
    terminal.type("n")
    terminal.see(
        r"✗ Declined · general-1: touch by-an-agent(.|\n)*✓ general-1: Touch a file · done(.|\n)*\nover: I did"
    )


def test_a_question_of_the_background_outlives_the_turn(open_terminal: Open, tmp_path: Path) -> None:
    script = tmp_path / "child.jsonl"
    script.write_text("".join(json.dumps(one) + "\n" for one in (run("touch by-an-agent"), {"text": "touched"})))
    agent = ("create_subagent", {"task": "Touch a file", "model": f"scripted/{script}", "background": True})
    terminal = open_terminal([calls(agent), {"text": "over", "delay_ms": 2500}, TOLD], "go")
    terminal.asked()
    terminal.see(r"\nover(.|\n)*Run this command")
    terminal.settle(0.5)
    terminal.type("y")
    terminal.see("✓ Allowed once · general-1: touch by-an-agent")
    terminal.see("understood")
    assert (tmp_path / "project" / "by-an-agent").exists()


def test_tasks_lists_what_runs_in_the_background_subagents_included(open_terminal: Open, tmp_path: Path) -> None:
    script = tmp_path / "child.jsonl"
    script.write_text(json.dumps({"text": "never", "delay_ms": 60_000}))
    agent = ("create_subagent", {"task": "Read all\nof it", "model": f"scripted/{script}", "background": True})
    terminal = open_terminal([calls(agent), {"text": "over"}], "go")
    terminal.see("\nover")
    terminal.type("/tasks\r")
    terminal.see("general-1 runs   Read all of it\n")


# Modes


def test_switching_the_mode_settles_what_it_would_not_ask(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([edit(), {"text": "edited"}], "go")
    terminal.asked()
    terminal.type("\x1b[Z")
    assert "allowed by mode acceptEdits" in terminal.see("\nedited")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hello")\n'


def test_a_mode_that_is_passed_over_settles_nothing(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([edit(), {"text": "so I only look"}], "go")
    terminal.asked()
    terminal.type("\x1b[Z\x1b[Z")
    terminal.see("so I only look")
    assert "plan mode is read-only" in terminal.text()
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'


def test_a_question_that_the_new_mode_asks_too_stays(open_terminal: Open) -> None:
    terminal = open_terminal([run("touch made"), {"text": "touched"}], "go")
    terminal.asked()
    terminal.type("\x1b[Z")
    terminal.see("accept edits")
    assert "Run this command" in terminal.settle(1.0)
    terminal.type("y")
    terminal.see("\ntouched")


# The limit of rounds


LOOK = calls(("file_read", {"path": "a.py"}))


@pytest.mark.sampled(1)
@WIDTHS
def test_at_the_limit_of_rounds_it_asks_whether_to_continue(open_terminal: Open, columns: int) -> None:
    terminal = open_terminal([LOOK] * 4 + [{"text": "there"}], "--max-turns", "2", "go", columns=columns)
    terminal.see("Continue")
    asked = words(terminal.settle(0.5))
    assert "2 rounds done. Allow 2 more?" in asked
    assert "limits.max_turns = 2" in asked
    terminal.type("y")
    terminal.see("4 rounds done")
    terminal.settle(0.5)
    terminal.type("y")
    terminal.see("\nthere")
    assert "Not run" not in terminal.transcript()


def test_declining_at_the_limit_ends_the_turn(open_terminal: Open) -> None:
    terminal = open_terminal([LOOK, LOOK, {"text": "another turn"}], "--max-turns", "2", "go")
    terminal.see("Continue")
    terminal.settle(0.5)
    terminal.type("n")
    assert "another turn" not in terminal.see("Stopped at the limit")
    terminal.type("and now?\r")
    terminal.see("\nanother turn")


def test_words_at_the_limit_are_the_next_prompt(open_terminal: Open) -> None:
    terminal = open_terminal([LOOK, LOOK, {"text": "a summary"}], "--max-turns", "2", "go")
    terminal.see("Continue")
    terminal.settle(0.5)
    terminal.type("\tsum it up")
    terminal.type("\r")
    assert "› sum it up" in terminal.see("\na summary")


def test_line_by_line_the_limit_asks_too(open_terminal: Open) -> None:
    terminal = open_terminal([LOOK, LOOK, {"text": "there"}], "--plain", "--max-turns", "2", "go")
    terminal.see(r"2 rounds done(.|\n)*Continue\?")
    terminal.type("y\n")
    terminal.see("there")


@pytest.mark.parametrize("plain", [False, True])
def test_a_slash_command_is_no_answer_and_waits_until_the_question_is_answered(
    open_terminal: Open, tmp_path: Path, plain: bool
) -> None:
    terminal = open_terminal([run("touch made"), {"text": "all"}], *(["--plain"] if plain else []), "go")
    terminal.see("Choose" if plain else r"Run this command\?")
    terminal.settle(0.5)
    at_human_speed(terminal, "/agents")
    terminal.type("\r")
    terminal.see(
        "Answer the question first"
        if plain
        else r"\$ touch made\nRun this command(.|\n)*The command waits in the input"
    )
    terminal.settle(1.5)
    if not plain:
        terminal.type("\r")  # is for the command, as the first one
        terminal.see("Answer with a letter")
    terminal.type("y\r" if plain else "y")
    terminal.see("\nall" if plain else r"\nall(.|\n)*› /agents")
    assert (tmp_path / "project/made").exists()


@pytest.mark.parametrize("plain", [False, True])
def test_a_slash_command_is_no_answer_to_the_model_but_a_path_is(open_terminal: Open, plain: bool) -> None:
    asks = calls(("ask_user", {"question": "Which folder?", "options": ["src", "lib"]}))
    terminal = open_terminal([asks, TOLD], *(["--plain"] if plain else []), "go")
    terminal.see("Choose" if plain else "Your answer")
    terminal.settle(0.5)
    terminal.type("/agents" if plain else "/")
    if not plain:
        terminal.see("answer: /")
        terminal.type("agents")
    terminal.type("\r")
    terminal.see("Enter skips it" if plain else r"Your answer(.|\n)*The command waits in the input")
    if not plain:
        terminal.settle(0.6)
        terminal.type("\t")
        terminal.see("answer:\n")
    terminal.type("/srv\r")
    terminal.see("understood: /srv" if plain else "understood: /srv(.|\n)*› /agents")


def test_a_slash_command_is_no_reason_for_a_no(open_terminal: Open) -> None:
    terminal = open_terminal([edit(), {"text": "edited"}], "go")
    terminal.asked()
    terminal.type("\t")
    terminal.see("No, because:")
    terminal.type("/diff\r")
    terminal.see(r"Make this edit(.|\n)*The command waits in the input")
    terminal.settle(0.6)
    terminal.type("y")
    terminal.see(r"\nedited(.|\n)*› /diff")


def test_what_a_question_is_about_stays_right_above_it(open_terminal: Open) -> None:
    terminal = open_terminal([run("seq 9", "touch made"), {"text": "all"}], "go")
    terminal.asked()
    terminal.type("\x0f")  # Ctrl-O prints what the first command said
    assert "▾" in terminal.see(r"\n  1\n(.|\n)*\$ touch made\nRun this command")


def test_hunks_are_decided_at_the_pace_of_a_hand(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "project" / "b.py").write_text("1\na\n2\na\n3\na\n4\n")
    edits = [{"old_string": f"{n}\n", "new_string": f"new {n}\n"} for n in range(1, 5)]
    terminal = open_terminal([calls(("file_edit", {"path": "b.py", "edits": edits})), {"text": "made"}], "go")
    terminal.asked()
    for key in "hyyny":
        terminal.type(key)
        terminal.settle(0.2)
    terminal.see("3 of 4 hunks(.|\n)*\nmade")
    assert (tmp_path / "project" / "b.py").read_text() == "new 1\na\nnew 2\na\n3\na\nnew 4\n"
    assert terminal.see("› Ask").endswith("script.jsonl")


def test_a_sentence_at_a_hunk_decides_nothing(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "project" / "b.py").write_text("1\n2\n3\n")
    edits = [{"old_string": "1", "new_string": "one"}, {"old_string": "3", "new_string": "three"}]
    terminal = open_terminal([calls(("file_edit", {"path": "b.py", "edits": edits})), {"text": "made"}], "go")
    terminal.asked()
    terminal.type("h")
    terminal.see("Apply hunk 1 of 2")
    for sentence in ("is that all?", "not so", "yes", "do it"):
        at_human_speed(terminal, f"{sentence}\r")
        assert "Apply hunk 1 of 2" in terminal.settle(1.0)
    at_human_speed(terminal, "/agents")
    terminal.type("\r")
    terminal.see("(?s)Apply hunk 1 of 2.*The command waits in the input")
    terminal.settle(0.6)
    terminal.type("y")
    terminal.see("Apply hunk 2 of 2")
    terminal.type("n")
    terminal.see("(?s)1 of 2 hunks.*› /agents")


# In a row


@pytest.mark.full
def test_ten_questions_in_a_row(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([run(*(f"touch made{n}" for n in range(10))), {"text": "all"}], "go")
    began = time.monotonic()
    for number in range(10):
        terminal.see(rf"\$ touch made{number}\b")
        terminal.asked()
        terminal.type("y")
    terminal.see("\nall")
    assert time.monotonic() - began < 60
    assert terminal.transcript().count("✓ Run touch") == 10
    assert len(list((tmp_path / "project").glob("made*"))) == 10
    assert words(terminal.transcript()).count("? Writes made") == 10


def test_a_key_pressed_twice_answers_once(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([run("touch one", "touch two"), {"text": "all"}], "go")
    terminal.asked()
    terminal.type("y")
    terminal.settle(0.35)
    terminal.type("y")
    terminal.see(r"\$ touch two")
    assert "Run this command" in terminal.settle(1.0)
    assert not (tmp_path / "project" / "two").exists()
    terminal.type("y")
    terminal.see("\nall")


@pytest.mark.full
def test_the_input_does_not_flash_up_between_two_questions(open_terminal: Open) -> None:
    terminal = open_terminal([run(*(f"touch made{n}" for n in range(6))), {"text": "all"}], "go")
    quick = 0
    for number in range(1, 6):
        terminal.asked()
        before, began = len(terminal.written), time.monotonic()
        terminal.type("y")
        terminal.see(rf"\$ touch made{number}\b")
        if time.monotonic() - began < 0.8:  # it is kept away for a while only
            assert "›".encode() not in terminal.written[before:]
            quick += 1
    if not quick:
        pytest.skip("this machine is too slow now")


@pytest.mark.full
def test_the_time_of_the_person_is_not_the_call_s(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([run("touch made"), {"text": "all"}], "go")
    terminal.asked()
    terminal.settle(2.5)
    terminal.type("y")
    screen = terminal.see(r"✓ Run touch made(.|\n)*\nall(.|\n)*›")
    assert not re.search(r"[2-9]\.\d s", screen)


@pytest.mark.full
def test_a_question_below_an_open_list_is_reported_and_waits_for_it(open_terminal: Open) -> None:
    late = {**edit(), "text": "Wait. " * 8, "delay_ms": 120, "chunk": 3}
    terminal = open_terminal([late, {"text": "done"}], "go")
    terminal.see("Wait")
    terminal.type("/effort\r")
    terminal.see("Enter to select")
    terminal.see("Waiting for your approval. Close the list")
    terminal.type("\x1b")
    terminal.asked()
    terminal.type("y")
    terminal.see("done")
