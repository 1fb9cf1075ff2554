"""The terminal session, typed into through a pseudo-terminal and read from the screen."""

import base64
import re
import signal
from pathlib import Path

import pytest

from tests.app.terminal import Open

pytestmark = pytest.mark.slow  # each opens the program in a terminal and waits as a person would

EDIT = {"tool_calls": [{"name": "file_edit", "input": {"path": "a.py", "old_string": "hi", "new_string": "hello"}}]}
SLOW = {"text": "word " * 400, "delay_ms": 20, "chunk": 5}


def running(command: str) -> dict[str, object]:
    return {"tool_calls": [{"name": "bash", "input": {"command": command}}]}


def test_an_answer_appears_with_its_markup_and_no_footer(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "It prints **hi** with `print`."}])
    terminal.see("›")
    terminal.type("what is a.py?")
    terminal.see(r"› what is a.py\?")
    terminal.type("\r")
    terminal.see(r"It prints hi with print\.\n\n› Ask")
    terminal.see(r"ask before edits · \d% context · script\.jsonl")
    assert "tokens" not in terminal.settle()
    terminal.leave()
    assert terminal.exit_code() == 0


def test_leaving_gives_the_terminal_back_as_it_was(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "said"}], "go")
    terminal.see("said")
    terminal.leave()
    assert terminal.exit_code() == 0
    for mode in (b"2004", b"1004"):
        assert terminal.written.rindex(b"\x1b[?" + mode + b"l") > terminal.written.rindex(b"\x1b[?" + mode + b"h")
    assert "To resume this session: agentcli -r" in terminal.text()
    assert not re.search(rb"\x1b\[[23]J", terminal.written)


def test_sigterm_gives_the_terminal_back_too(open_terminal: Open) -> None:
    terminal = open_terminal([SLOW], "go")
    terminal.see("word word")
    terminal.kill(signal.SIGTERM)
    assert terminal.exit_code() == 143
    assert b"\x1b[?2004l" in terminal.written


def test_text_typed_before_the_session_is_ready_is_not_lost(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "got: early"}])
    terminal.type("early bird")
    terminal.see("early bird")
    terminal.type("\r")
    terminal.see("got: early")


def test_calls_take_a_line_each(open_terminal: Open) -> None:
    call = {"name": "file_read", "input": {"path": "a.py"}}
    terminal = open_terminal(
        [{"tool_calls": [call, {"name": "bash", "input": {"command": "ls"}}]}, {"text": "done"}], "go"
    )
    assert re.search(r"✓ Read a.py · 1 line\n", terminal.see("done"))
    assert re.search(r"✓ Run ls · 2 lines\n  a.py\n  script.jsonl", terminal.text())


def test_a_long_output_is_folded_and_ctrl_o_unfolds_it(open_terminal: Open) -> None:
    terminal = open_terminal([running("seq 30")], "--permission-mode", "bypassPermissions", "go")
    assert "  12\n" not in terminal.see(r"… 25 more lines \(Ctrl-O shows all\)\n  26\n")
    terminal.type("\x0f")
    terminal.see("▾ Run seq 30\n  1\n  2\n")


# Approvals


def test_an_edit_shows_its_diff_once_and_is_made_on_yes(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([EDIT, {"text": "edited"}], "go")
    screen = terminal.asked()
    assert '- print("hi")' in screen
    assert '+ print("hello")' in screen
    terminal.type("y")
    assert terminal.see("edited").count('+ print("hello")') == 1
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hello")\n'


def writing(lines: int) -> dict[str, object]:
    content = "".join(f"line {number}\n" for number in range(lines))
    return {"tool_calls": [{"name": "file_write", "input": {"path": "new.txt", "content": content}}]}


WORDS = [f"word{number:04}" for number in range(800)]
LONG_COMMAND = f"touch start && true {' '.join(WORDS)} && touch the-end"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("columns", "rows"), [(100, 30), (100, 60), (40, 30)])
def test_an_approval_counts_once_all_that_will_run_was_on_the_screen(
    open_terminal: Open, tmp_path: Path, columns: int, rows: int
) -> None:
    replies = [running(LONG_COMMAND), {"text": "all done"}]
    flags = {"AGENTCLI_PERMISSIONS_TRY": "false"}
    terminal = open_terminal(replies, "go", columns=columns, rows=rows, **flags)
    terminal.see("Scroll to the end to approve")
    terminal.settle(0.5)
    for key in ("y", "s", "1"):
        terminal.type(key)
        terminal.see(r"Scroll to the end first: [^.]*[.…](?!\.)")
        terminal.settle(0.4)
    seen = terminal.text()
    while "y   Yes" not in terminal.text():
        assert not (tmp_path / "project" / "start").exists()
        shown = terminal.text()
        terminal.type("\x1b[6~")
        while terminal.text() == shown:
            terminal.settle(0.1)
        seen += terminal.settle(0.1)
    assert "touch the-end" in terminal.text().replace("\n", "")
    for text in (seen, terminal.transcript()):  # each stood on a screen, not only in what scrolled past
        assert [word for word in WORDS if word not in text.replace("\n", "")] == []
    terminal.settle(0.3)
    terminal.type("y")
    terminal.see("all done")
    assert (tmp_path / "project" / "the-end").exists()


def test_a_diff_is_shown_to_its_end_row_by_row(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([writing(40), {"text": "done"}], "go", rows=30)
    terminal.see(r"Scroll to the end to approve \(\d+ more rows\): ↓ row · PageDown page · End all · v pager")
    terminal.settle(0.3)
    terminal.type("v")
    terminal.settle(1.0)
    terminal.type("q")
    terminal.see("Scroll to the end")
    assert "y   Yes" not in terminal.settle(0.5)
    terminal.type("\x1b[B" * 40)
    terminal.see(r"line 39\n(.|\n)*y   Yes")
    terminal.settle(0.5)
    terminal.type("n")
    terminal.see("Declined")
    assert not (tmp_path / "project" / "new.txt").exists()


def test_one_key_leads_to_the_end_of_a_long_diff(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([writing(400), {"text": "done"}], "go", rows=30)
    terminal.see("Scroll to the end")
    assert not (tmp_path / "project" / "new.txt").exists()
    terminal.settle(1.0)
    terminal.type("\x1b[F")
    terminal.see("y   Yes")
    terminal.settle(0.5)
    terminal.type("y")
    terminal.see("done")
    assert (tmp_path / "project" / "new.txt").exists()


def test_a_project_is_trusted_only_after_all_its_parts_were_shown(open_terminal: Open, tmp_path: Path) -> None:
    hook = 'hooks.PreToolUse = [{matcher = "bash", hooks = [{type = "command", command = "echo \u202e; ./run"}]}]\n'
    folder = tmp_path / "project" / ".agentcli"
    folder.mkdir()
    (folder / "config.toml").write_text("".join(f"# line {number}\n" for number in range(40)) + hook)
    terminal = open_terminal(None, "config", "trust", rows=30)
    assert "Trust" not in terminal.see(r"Show the rest \(\d+ more rows\)\?")
    terminal.type("\r")
    terminal.see("Trust these files as they are now")
    assert r"echo \u202e; ./run" in terminal.text()
    terminal.type("n\r")
    assert terminal.exit_code() == 0
    assert not (tmp_path / "home" / "state" / "trust.json").exists()


def test_a_choice_is_taken_by_its_number_too(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([EDIT], "go")
    terminal.asked()
    terminal.type("4")
    terminal.see("✗ Declined · Edit a.py")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'


def test_an_answer_for_the_session_is_asked_once(open_terminal: Open, tmp_path: Path) -> None:
    command = running("touch made && echo made")
    terminal = open_terminal([command, command, {"text": "done"}], "go", AGENTCLI_PERMISSIONS_TRY="false")
    terminal.asked()
    terminal.type("s")
    assert terminal.see("\ndone").count("? Writes made") == 1
    assert (tmp_path / "project" / "made").exists()


def test_a_piped_run_of_tests_can_be_allowed_with_other_arguments(open_terminal: Open) -> None:
    first, other = (running(f"python3 -m pytest --version {flag} 2>&1 | tail -5") for flag in ("-q", "-v"))
    terminal = open_terminal([first, other, {"text": "done"}], "go", AGENTCLI_PERMISSIONS_TRY="false")
    terminal.asked()
    terminal.see("Rule for s/a: exactly this command")
    terminal.type("\x1b[C\x1b[C")
    terminal.see("Rule for s/a: every command that starts with `python3 -m pytest`")
    terminal.type("s")
    assert terminal.see("\ndone").count("? Runs python3") == 1


def test_always_holds_in_the_next_session(open_terminal: Open, tmp_path: Path) -> None:
    script = [running("git init one"), {"text": "done"}]
    first = open_terminal(script, "go", AGENTCLI_PERMISSIONS_TRY="false")
    first.asked()
    first.see("Rule for s/a: exactly this command")
    first.type("\x1b[C")
    first.see("Rule for s/a: every command that starts with `git init`")
    first.type("a")
    first.see("\ndone")
    first.leave()
    assert first.exit_code() == 0
    second = open_terminal([running("git init two"), {"text": "done"}], "go")
    assert "Run this command" not in second.see("\ndone")
    assert (tmp_path / "project" / "two").is_dir()


def test_a_letter_of_a_sentence_is_not_an_answer(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"text": "thinking", "delay_ms": 700, "chunk": 1000, **EDIT}, {"text": "steered"}], "go")
    terminal.see("Working")
    for letter in "definitely ":
        terminal.type(letter)
        terminal.settle(0.1)
    terminal.see("Send .* your draft")
    terminal.settle(1.5)  # a pause to think is no end of the sentence
    terminal.type("yes")
    terminal.see("› definitely yes")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'
    terminal.type("\x13")
    terminal.asked()
    terminal.settle(0.8)
    terminal.type("y")
    terminal.see("steered")


def test_keys_typed_as_a_question_appears_are_not_an_answer(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([EDIT, {"text": "heard you"}])
    terminal.see("script.jsonl")
    terminal.type("go\ryes do it like this")
    terminal.see("Send .* your draft")
    terminal.type("\r")
    terminal.see("next: yes do it like this")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'


# While it works


def test_esc_interrupts_and_keeps_what_was_reported(open_terminal: Open) -> None:
    terminal = open_terminal([SLOW, {"text": "second answer"}], "go")
    terminal.see("word word")
    terminal.type("\x1b")
    terminal.see("Interrupted. The conversation so far is kept")
    assert "word word" in terminal.text()
    terminal.type("again\r")
    terminal.see("second answer")


def test_a_running_command_shows_its_tail_and_ctrl_c_ends_it(open_terminal: Open) -> None:
    sleep = running("echo begun; sleep 60")
    terminal = open_terminal([sleep, {"text": "next"}], "--permission-mode", "bypassPermissions", "go")
    terminal.see(r". Run echo begun; sleep 60 · \d s\n  begun\n›")
    terminal.type("\x03")
    terminal.see("✗ Run echo begun; sleep 60 · interrupted")
    terminal.type("and now?\r")
    terminal.see("next")


def test_typing_stays_possible_and_enter_steers(open_terminal: Open) -> None:
    both = {"tool_calls": [running("sleep 1")["tool_calls"][0], running("touch skipped")["tool_calls"][0]]}  # type: ignore[index]
    terminal = open_terminal([both, {"text": "I heard you"}], "--permission-mode", "bypassPermissions", "go")
    terminal.see("Run sleep 1")
    terminal.type("stop there\r")
    terminal.see("next: stop there")
    screen = terminal.see("I heard you")
    assert "Not run, because your message came first: Run touch skipped" in screen
    assert "› stop there" in screen


def test_tab_queues_for_afterwards_and_up_takes_it_back(open_terminal: Open) -> None:
    terminal = open_terminal([SLOW, {"text": "second"}], "go")
    terminal.see("word word")
    terminal.type("afterwards\t")
    terminal.see("queued: afterwards")
    terminal.type("\x1b[A")
    terminal.see("› afterwards")
    assert "queued:" not in terminal.settle()
    terminal.type(", please\t")
    terminal.see("queued: afterwards, please")
    terminal.type("\x1b")
    terminal.see("Interrupted")
    assert "queued: afterwards, please" in terminal.settle()
    terminal.type("\r")
    terminal.see("› afterwards, please\n\nsecond")


def test_a_key_takes_the_newest_queued_message_back(open_terminal: Open) -> None:
    terminal = open_terminal([SLOW], "go")
    terminal.see("word word")
    for text in ("first thing", "second thing"):
        terminal.type(f"{text}\t")
        terminal.see(f"queued: {text}")
    terminal.type("and more\x1b[1;3A")
    terminal.see("› second thing\n  and more")
    assert "queued: first thing\n" in terminal.settle()


def test_queued_messages_survive_a_kill(open_terminal: Open) -> None:
    first = open_terminal([SLOW], "go")
    first.see("word word")
    first.type("for later\t")
    first.see("queued: for later")
    first.settle()  # it is stored a few milliseconds after it is shown
    first.kill(signal.SIGKILL)
    second = open_terminal([{"text": "here it is"}], "--continue")
    second.see("queued: for later")
    second.type("\r")
    second.see("› for later\n\nhere it is")


def test_a_call_that_a_kill_cut_off_is_reported_on_the_way_back(open_terminal: Open) -> None:
    first = open_terminal([running("touch begun; sleep 30")], "--permission-mode", "bypassPermissions", "go")
    first.see("Run touch begun; sleep 30")
    first.settle(1.0)
    first.kill(signal.SIGKILL)
    second = open_terminal([{"text": "x"}], "--continue")
    second.see("✗ Run touch begun; sleep 30 · cut off; it may have partially run\n")
    assert "ms" not in second.settle()


def test_shift_tab_changes_the_mode_without_stopping_anything(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([running("sleep 1"), EDIT, {"text": "done"}], "--allow", "bash(sleep *)", "go")
    terminal.see("Run sleep 1")
    terminal.type("\x1b[Z")
    terminal.see("accept edits")
    assert "Make this edit" not in terminal.see("\ndone")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hello")\n'


def test_ctrl_b_sends_the_running_command_to_the_background(open_terminal: Open) -> None:
    terminal = open_terminal(
        [running("echo begun; sleep 30"), {"text": "went on"}], "--permission-mode", "bypassPermissions", "go"
    )
    terminal.see("Run echo begun")
    terminal.settle(0.3)
    terminal.type("\x02")
    terminal.see("went on")
    terminal.see("1 job")


def test_a_shell_command_of_the_person_runs_at_once(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"text": "told: yes"}])
    terminal.see("script.jsonl")
    terminal.type("!echo out > made; echo printed\r")
    terminal.see(r"\nprinted\n\n?› ")
    assert (tmp_path / "project" / "made").exists()


def test_an_impatient_second_ctrl_c_does_not_leave(open_terminal: Open) -> None:
    terminal = open_terminal([SLOW, {"text": "still here"}], "go")
    terminal.see("word word")
    terminal.type("\x03")
    terminal.see("Interrupted")
    terminal.type("\x03")
    terminal.see("Press Ctrl-C again to leave")
    terminal.type("and now?\r")
    terminal.see("still here")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", [40, 80, 120])
def test_enter_continues_with_an_answer_that_broke_off(open_terminal: Open, columns: int) -> None:
    """The answer breaks off twice: the program continues it once by itself."""
    broken = {"kind": "connection", "message": "The line went dead."}
    replies = [{"text": text, "error": broken} for text in ("This is ", "the one half")]
    terminal = open_terminal([*replies, {"text": " and this the other."}], "go", columns=columns)
    terminal.see(r"The answer broke off\. The line went\s+dead\. Continuing\s+where\s+it\s+stopped\.")
    shown = terminal.see(r"The answer broke off\.\s+Press\s+Enter[\w\s]+to\s+continue\s+it")
    assert "the one half" in shown
    terminal.settle()
    terminal.type("\r")
    terminal.see("and this the other")
    assert "Go on" not in terminal.transcript()
    terminal.type("/copy\r")
    terminal.get(b"\x1b]52;c;" + base64.b64encode(b"This is the one half and this the other."))


def test_enter_sends_a_request_again_that_failed_for_a_while(open_terminal: Open) -> None:
    replies = [{"error": {"kind": "overloaded", "message": "Overloaded"}}, {"text": "Now it answers."}]
    terminal = open_terminal(replies, "go", AGENTCLI_RETRY_MAX="0")
    terminal.see(r"is overloaded\.\s+Press Enter to retry, or /model to\s+switch\.")
    terminal.settle()
    terminal.type("\r")
    terminal.see("Now it answers.")


def test_a_question_beside_the_work_is_seen_and_can_be_stopped(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "one"}, {"text": "late", "delay_ms": 30_000}, {"text": "two"}], "go")
    terminal.see("one")
    terminal.type("/btw why?\r")
    terminal.see(r"/btw · \d s(.|\n)*Esc to interrupt")
    terminal.type("\x1b")
    terminal.see("/btw was interrupted")


def test_each_session_has_a_draft_of_its_own(open_terminal: Open) -> None:
    first = open_terminal([{"text": "x"}])
    first.see("script.jsonl")
    first.type("mine alone")
    first.settle(1.0)
    second = open_terminal([{"text": "x"}])
    second.see("script.jsonl")
    assert "mine alone" not in second.settle()
    second.type("other words")
    second.settle(1.0)
    first.kill(signal.SIGKILL)
    first.exit_code()
    third = open_terminal([{"text": "x"}])
    third.see("› mine alone")


def test_the_draft_of_a_conversation_comes_back_in_that_conversation_only(open_terminal: Open) -> None:
    first = open_terminal([{"text": "Hello."}, {"text": "x"}])
    first.see("script.jsonl")
    first.type("greet me\r")
    first.see("Hello")
    first.type("half a thought")
    first.settle(1.0)
    first.kill(signal.SIGKILL)
    first.exit_code()
    other = open_terminal([{"text": "x"}])
    other.see("script.jsonl")
    assert "thought" not in other.settle(0.5)
    other.type("/exit\r")
    assert other.exit_code() == 0
    again = open_terminal([{"text": "Sent."}], "-c")
    again.see("› half a thought")
    again.type("!\r")
    again.see("Sent")
    again.rest()  # the answer is on disk then
    again.kill(signal.SIGKILL)
    again.exit_code()
    last = open_terminal([{"text": "x"}], "-c")
    last.see("Sent(.|\n)*script.jsonl")
    assert "› Ask" in last.settle(0.5), "what was sent is no draft"


# Input


def test_ctrl_c_clears_a_line_and_where_that_is_empty_twice_leaves(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "answered: yes"}])
    terminal.see("script.jsonl")
    terminal.type("unfinished")
    terminal.see("unfinished")
    terminal.type("\x03")
    terminal.type("whole\r")
    assert "unfinished" not in terminal.see("answered: yes")
    terminal.settle()
    terminal.type("\x03")
    terminal.see("Press Ctrl-C again to leave")
    terminal.type("\x03")
    assert terminal.exit_code() == 0


def test_several_lines_are_one_prompt(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "got it"}])
    terminal.see("script.jsonl")
    terminal.type("first\x1b\rsecond\x0athird\x1b[27;2;13~fourth\\")
    terminal.see("fourth")
    terminal.type("\rfifth")
    terminal.see("first\n  second\n  third\n  fourth\n  fifth")
    terminal.type("\r")
    terminal.see("got it")


def test_a_paste_is_one_token_and_one_undo(open_terminal: Open) -> None:
    lines = "".join(f"pasted line {number}\n" for number in range(10_000))
    terminal = open_terminal([{"text": "ok"}])
    terminal.see("script.jsonl")
    terminal.type(f"see \x1b[200~{lines}\x1b[201~")
    terminal.see(r"› see \[Pasted #1 \+10,000 lines\]")
    terminal.type("\x7f")
    terminal.see("› see\n")
    terminal.type(f"\x1b[200~{lines}\x1b[201~")
    terminal.see(r"› see \[Pasted #\d \+10,000 lines\]")
    terminal.type(" please\r")
    terminal.see("\nok\n")


def test_history_is_kept_for_the_project_and_can_be_searched(open_terminal: Open) -> None:
    first = open_terminal([{"text": "one"}, {"text": "two"}], "--no-session")
    first.see("script.jsonl")
    first.close()
    second = open_terminal([{"text": "one"}, {"text": "two"}])
    second.see("script.jsonl")
    for text, answer in (("find the parser", "one"), ("write tests", "two")):
        second.type(f"{text}\r")
        second.see(f"\n{answer}\n")
        second.rest()
    second.leave()
    assert second.exit_code() == 0
    third = open_terminal([{"text": "x"}])
    third.see("script.jsonl")
    third.type("\x1b[A")
    third.see("› write tests")
    third.type("\x03\x12")
    third.see("History")
    third.type("parser")
    third.see("❯ find the parser")
    third.type("\r")
    third.see("› find the parser")


def test_paths_are_completed_behind_an_at_sign(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"text": "x"}])
    (tmp_path / "project" / "src").mkdir()
    (tmp_path / "project" / "src" / "parser.py").write_text("")
    terminal.see("script.jsonl")
    terminal.type("look at @srpar")
    terminal.see("❯ src/parser.py")
    terminal.type("\t")
    terminal.see("› look at @src/parser.py")


def test_commands_are_completed_and_enter_runs_the_marked_one(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "x"}])
    terminal.see("script.jsonl")
    terminal.type("/hel")
    terminal.see("❯ /help")
    terminal.type("\r")
    terminal.see("/quit")


def test_ctrl_s_stashes_and_brings_back(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "first things first"}])
    terminal.see("script.jsonl")
    terminal.type("a half-written thought\x13")
    terminal.see("Stashed")
    terminal.type("quick question\r")
    terminal.see("first things first")
    terminal.type("\x13")
    terminal.see("› a half-written thought")


def test_the_external_editor_changes_the_text(open_terminal: Open, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf " and edited" >> "$1"\n')
    editor.chmod(0o755)
    terminal = open_terminal([{"text": "x"}], EDITOR=str(editor), VISUAL="")
    terminal.see("script.jsonl")
    terminal.type("written")
    terminal.see("› written")
    terminal.type("\x07")
    terminal.see("› written and edited")


def test_a_plan_is_edited_before_it_is_accepted(open_terminal: Open, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "\\n2. Test it." >> "$1"\n')
    editor.chmod(0o755)
    replies = [{"text": "# Plan\n\n1. Write it."}, {"text": "done"}]
    terminal = open_terminal(replies, "--permission-mode", "plan", EDITOR=str(editor), VISUAL="")
    terminal.see("script.jsonl")
    terminal.type("plan it\r")
    terminal.see("Edit the plan first")
    terminal.settle(0.3)
    terminal.type("e")
    terminal.see(r"(?s)2\. Test it.*done")


def test_vi_keys_when_the_settings_say_so(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "x"}], AGENTCLI_TERMINAL_EDITING_MODE="vi")
    terminal.see("script.jsonl")
    terminal.type("one two")
    terminal.see("› one two")
    terminal.type("\x1b")
    terminal.settle()
    terminal.type("bD")
    terminal.see("› one\n")


def test_a_paste_is_never_run_whatever_it_begins_with(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"text": "read it"}])
    terminal.see("script.jsonl")
    paste = "!touch owned #" + "\n/quit" * 20
    terminal.type(f"\x1b[200~{paste}\x1b[201~")
    terminal.see("Pasted #1")
    terminal.type("\r")
    terminal.see("read it")
    assert not (tmp_path / "project" / "owned").exists()


def test_bytes_that_are_not_utf8_are_stored_like_any_prompt(open_terminal: Open) -> None:
    first = open_terminal([{"text": "understood"}])
    first.see("script.jsonl")
    first.send(b"caf\xe9 ok\r")
    first.see("understood")
    first.leave()
    assert first.exit_code() == 0
    open_terminal([{"text": "x"}], "--continue").see("understood")


def test_lines_typed_ahead_reach_the_conversation_they_follow(open_terminal: Open) -> None:
    first = open_terminal([{"text": "old answer"}], "old question")
    first.see("old answer")
    first.leave()
    assert first.exit_code() == 0
    second = open_terminal([{"text": "new answer"}, {"text": "and again"}])
    second.see("script.jsonl")
    second.type("/resume 1\r")
    second.type("hello there\r")
    second.see("Resumed")
    second.see("new answer")
    second.rest()
    second.type("/rewind\r")
    second.see("old question")


def test_a_failed_turn_is_reported_and_keeps_what_is_queued(open_terminal: Open) -> None:
    terminal = open_terminal([{"error": {"kind": "auth"}, "delay_ms": 800}, {"text": "second"}], "go")
    terminal.see("Working")
    terminal.type("later\t")
    terminal.see("queued: later")
    terminal.see("✗ scripted auth error")
    assert "queued: later" in terminal.settle()
    terminal.type("\r")
    terminal.see("second")


# Commands


BACKGROUND = {"tool_calls": [{"name": "bash", "input": {"command": "sleep 60", "background": True}}]}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keys", ["/quit\r", "\x04", "\x03\x03"], ids=["quit", "ctrl-d", "ctrl-c"])
@pytest.mark.parametrize("flags", [(), ("--plain",)], ids=["live", "plain"])
def test_leaving_with_jobs_asks_once(open_terminal: Open, flags: tuple[str, ...], keys: str) -> None:
    terminal = open_terminal([BACKGROUND, {"text": "it runs"}], *flags, "--permission-mode", "bypassPermissions", "go")
    terminal.see("it runs")
    terminal.settle()
    keys = keys[:1] if flags and keys == "\x03\x03" else keys
    terminal.type(keys)
    terminal.see(r"A job is still running: job_\w+ \(sleep 60\)")
    terminal.settle()
    terminal.type(keys)
    terminal.see("A job was still running and stopped with the session")
    assert terminal.exit_code() == (130 if flags and keys == "\x03" else 0)


@pytest.mark.parametrize("flags", [(), ("--plain",)], ids=["live", "plain"])
def test_a_signal_ends_jobs_without_asking_and_says_so(open_terminal: Open, flags: tuple[str, ...]) -> None:
    terminal = open_terminal([BACKGROUND, {"text": "it runs"}], *flags, "--permission-mode", "bypassPermissions", "go")
    terminal.see("it runs")
    terminal.kill(signal.SIGTERM)
    terminal.see("A job was still running and stopped with the session")
    assert terminal.exit_code() == 143


@pytest.mark.sampled(1)
@pytest.mark.parametrize("flags", [(), ("--plain",)], ids=["live", "plain"])
def test_the_end_of_a_job_is_a_line_once_the_answer_is_there(open_terminal: Open, flags: tuple[str, ...]) -> None:
    job = {"name": "bash", "input": {"command": "sleep 2; echo slept; exit 3", "background": True}}
    answer = {"text": "it runs, slowly and in many words", "chunk": 4, "delay_ms": 600}
    terminal = open_terminal([{"tool_calls": [job]}, answer], *flags, "--permission-mode", "bypassPermissions", "go")
    screen = terminal.see(r"✗ job_1 failed \(exit 3\) · sleep 2; echo slept; exit 3 · 2 s")
    assert "it runs, slowly and in many words" in screen.partition("✗ job_1 failed")[0]
    terminal.settle(3)
    assert terminal.transcript().count("✗ job_1") == 1


def test_an_unknown_command_suggests_the_nearest_and_sends_nothing(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "sent"}])
    terminal.see("script.jsonl")
    terminal.type("/modle\r")
    assert "sent" not in terminal.see("Did you mean /model")


def test_the_model_is_switched_in_mid_conversation(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"text": "from the first"}], "go")
    terminal.see("from the first")
    (tmp_path / "project" / "other.jsonl").write_text('{"text": "from the second"}\n')
    terminal.type("/model scripted/other.jsonl\r")
    terminal.see("Starting with the next request")
    terminal.type("and you?\r")
    assert "script.jsonl → scripted/other.jsonl" in terminal.see("from the second")


def test_esc_twice_rewinds_to_an_earlier_prompt(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "answer one"}, {"text": "answer two"}])
    terminal.see("script.jsonl")
    for prompt, answer in (("first question", "answer one"), ("second question", "answer two")):
        terminal.type(f"{prompt}\r")
        terminal.see(answer)
        terminal.see("Ask, or describe")
    terminal.type("\x1b[5~")
    assert "› second" not in terminal.settle().splitlines()[-2], "PageUp recalls nothing"
    terminal.type("\x1b")
    terminal.see("Esc again")
    terminal.type("\x1b")
    terminal.see("❯ .*(first|second) question +just now")
    assert "Press Esc again" not in terminal.text()
    terminal.type("second")
    terminal.settle()
    terminal.type("\r")
    terminal.see("› second question$|› second question\n")


def test_copy_sends_the_source_of_an_answer_to_the_clipboard(open_terminal: Open) -> None:
    source = "Use **this**:\n\n```sh\nls -l\n```\n"
    terminal = open_terminal([{"text": source}], "go", PATH="/usr/bin:/bin")
    terminal.see("ls -l")
    terminal.rest()
    terminal.type("/copy\r")
    terminal.see(f"Copied {len(source)} characters")
    assert b"\x1b]52;c;" + base64.b64encode(source.encode()) in terminal.written


# Failures, looks, starts


def test_escape_sequences_from_model_and_tools_do_not_reach_the_terminal(open_terminal: Open) -> None:
    attack = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x9b2Jend"
    printed = {"name": "bash", "input": {"command": "printf '\\033[2J\\033]0;owned\\007shown'"}}
    terminal = open_terminal(
        [{"text": attack, "tool_calls": [printed]}, {"text": "last"}], "--permission-mode", "bypassPermissions", "go"
    )
    assert "redend" in terminal.see("last")
    assert b"\x1b[2J" not in terminal.written
    assert b"owned\x07" not in terminal.written


@pytest.mark.parametrize(
    ("flag", "env"), [("--plain", {}), ("--verbose", {"NO_COLOR": "1"}), ("--verbose", {"TERM": "dumb"})]
)
def test_colours_can_be_turned_off(open_terminal: Open, flag: str, env: dict[str, str]) -> None:
    terminal = open_terminal([EDIT, {"text": "done"}], "--permission-mode", "acceptEdits", flag, "go", **env)
    assert '+ print("hello")' in terminal.see("done")
    assert not re.search(rb"\x1b\[[\d;]*3[0-9]m|\x1b\[38;", terminal.written)


@pytest.mark.parametrize(("flag", "env"), [("--plain", {}), ("--verbose", {"TERM": "dumb"})])
def test_plain_is_a_line_after_another(open_terminal: Open, flag: str, env: dict[str, str]) -> None:
    terminal = open_terminal([EDIT, {"text": "all **done**"}, {"text": "more"}], flag, "go", **env)
    terminal.see("Make this edit\\?\n  y  Yes")
    terminal.type("y\n")
    terminal.see("all \\*\\*done\\*\\*")
    terminal.type("and?\n")
    terminal.see("more")
    terminal.leave()
    assert terminal.exit_code() == 0
    assert b"\x1b" not in terminal.written


def test_line_by_line_ctrl_c_clears_the_line_and_only_twice_leaves(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "the answer"}], "--plain")
    terminal.see("›")
    terminal.settle()
    terminal.type("nonsense")
    terminal.see("nonsense")
    terminal.type("\x03")
    terminal.see(r"nonsense\^C\nPress Ctrl-C again to leave\.\n›")
    terminal.type("sense\n")
    terminal.see("the answer")
    terminal.settle()
    terminal.type("\x03")
    terminal.see(r"(?s)the answer.*Press Ctrl-C again to leave\.\n›")
    terminal.type("\x03")
    assert terminal.exit_code() == 130


def test_line_by_line_only_what_can_be_answered_is_offered(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal(
        [EDIT, running("touch a b"), {"text": "done"}], "--plain", "go", AGENTCLI_PERMISSIONS_TRY="false"
    )
    assert "Dry run" not in terminal.see(r"Make this edit\?(.|\n)* instead:")
    terminal.type("t\n")  # which is no answer, but what to do instead
    screen = terminal.see(r"Writes a, b(.|\n)*instead:")
    assert "t  Dry run first" in screen
    terminal.type("n\n")
    terminal.see("✗ Declined · touch a b\n\ndone")
    assert (tmp_path / "project" / "a.py").read_text() == 'print("hi")\n'


def test_line_by_line_all_of_a_request_is_shown_before_its_question(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([writing(100), {"text": "so be it"}], "--plain", "go", rows=30)
    terminal.see(r"line 99\n(.|\n)*Write this file\?")
    assert "line 50" in terminal.transcript()
    assert not (tmp_path / "project" / "new.txt").exists()
    terminal.type("y\n")
    terminal.see("so be it")
    assert (tmp_path / "project" / "new.txt").exists()


def test_line_by_line_no_key_is_named_that_does_not_exist(open_terminal: Open) -> None:
    replies = [running("seq 30"), writing(60), {"thinking": "let me think", "text": "done"}]
    terminal = open_terminal(replies, "--plain", "--permission-mode", "bypassPermissions", "go")
    terminal.see("done")
    said = terminal.transcript()
    assert "… 25 more lines" in said
    assert "∴ Thought · 3 words" in said
    assert "Ctrl-O" not in said


def test_the_background_chooses_the_theme(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "`code`"}])
    terminal.see("script.jsonl")
    terminal.type("\x1b]11;rgb:ffff/ffff/ffff\x07")
    terminal.get(b"38;5;240m")  # the light theme's grey
    terminal.type("go\r")
    terminal.see("\ncode")
    assert re.search(rb"38;5;23m\s*code", terminal.written)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_any_width_is_enough(open_terminal: Open, columns: int) -> None:
    text = "wide 漢字 and 🎉, combining e\u0301 and שלום " * 8
    terminal = open_terminal([{"text": text + "END"}], "go", columns=columns)
    terminal.see("END")
    terminal.type("next")
    terminal.see("› next")
    assert (terminal.screen.cursor.y, terminal.screen.cursor.x) == (terminal.row_of("› next"), 6)


def test_a_window_resized_in_mid_stream_keeps_every_word(open_terminal: Open) -> None:
    words = [f"w{number}" for number in range(300)]
    terminal = open_terminal([{"text": " ".join(words), "delay_ms": 5, "chunk": 6}], "go", columns=100)
    terminal.see("w10 ")
    for rows, columns in ((40, 120), (30, 140), (20, 120), (5, 130), (40, 150)):
        terminal.resize(rows, columns)
        terminal.settle(0.2)
    terminal.see(r"w299\n\n› Ask")
    assert " ".join(terminal.transcript().split()).count(" ".join(words[-50:])) == 1
    assert not re.search(rb"\x1b\[[23]J", terminal.written)


def test_continue_resumes_where_the_last_session_ended(open_terminal: Open) -> None:
    first = open_terminal([{"text": "kept answer"}], "a prompt")
    first.see("kept answer")
    first.leave()
    assert first.exit_code() == 0
    second = open_terminal([{"text": "on we go"}], "--continue", "and then?")
    assert "› a prompt\n\nkept answer" in second.see("on we go")


def test_a_one_shot_is_no_conversation_until_somebody_talks_in_it(open_terminal: Open) -> None:
    def talk(*flags: str, see: str, prompt: str = "") -> None:
        terminal = open_terminal([{"text": "the answer"}], *flags)
        terminal.see(see)
        if prompt:
            terminal.type(f"{prompt}\r")
            terminal.see(f"› {prompt}\n\nthe answer")
            terminal.leave()
        assert terminal.exit_code() == 0

    talk(see="Ask", prompt="sat here")
    talk("-p", "from cron", see="the answer")
    talk("-p", "-c", "from cron again", see="the answer")  # continues the newest of all
    talk("-c", see="sat here", prompt="still here")
    open_terminal(None, "sessions", "list").see("(?s) sat here.*one-shot: from cron")
    resumed = open_terminal([{"text": "the answer"}], "-c")
    resumed.see("still here")
    resumed.type("/resume\r")
    assert "from cron" not in resumed.see("With one-shots")
    resumed.type("\r")
    resumed.see("Resume session[^?]*from cron")
    resumed.type("\r")
    resumed.see("› from cron again")
    resumed.leave()
    assert resumed.exit_code() == 0
    open_terminal(None, "sessions", "list").see("entries? +from cron| [0-9]+ +from cron")
