"""`agentcli -p` and pipes: what is on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import PATIENCE_S, Place, Ran, call, wait_until

# each test starts the program; its folder has a file
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("place_with_a_file")]

TURN = (
    {"text": "Let me look.", "tool_calls": [call("file_read", path="a.py")], "usage": {"input_tokens": 100}},
    {"text": "It prints hi.", "usage": {"input_tokens": 50, "output_tokens": 5}},
)
ASKS = ({"tool_calls": [call("bash", command="touch made")]}, {"text": "So be it: {{last_result}}"})
SLOW = {"text": "one two three four five six", "chunk": 4, "delay_ms": 200}


def is_clean(ran: Ran) -> bool:
    return "Traceback" not in ran.err and "Exception" not in ran.err and "Fatal" not in ran.err


# The answer.


def test_into_a_pipe_goes_the_final_answer_and_nothing_else(place: Place) -> None:
    ran = place.run("-m", place.script(*TURN), "-p", "what is a.py?")
    assert (ran.code, ran.out, ran.err) == (0, "It prints hi.\n", "")


def test_verbose_shows_the_calls_on_stderr(place: Place) -> None:
    ran = place.run("-m", place.script(*TURN), "-p", "--verbose", "what is a.py?")
    assert (ran.code, ran.out) == (0, "It prints hi.\n")
    assert "✓ Read a.py · 1 line" in ran.err


def test_json_is_one_result_object(place: Place) -> None:
    ran = place.run("-m", place.script(*TURN), "-p", "what is a.py?", "--output-format", "json")
    (result,) = ran.lines
    assert ran.code == 0
    assert set(result) == {
        "type", "subtype", "is_error", "result", "structured_output", "session_id", "num_turns", "duration_ms",
        "duration_api_ms", "total_cost_usd", "usage", "model_usage", "permission_denials", "terminal_reason", "claims",
        "uuid",
    }  # fmt: skip
    assert (result["type"], result["subtype"], result["is_error"]) == ("result", "success", False)
    assert (result["result"], result["num_turns"], result["terminal_reason"]) == ("It prints hi.", 2, "end_turn")
    usage = {"input_tokens": 150, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    assert result["usage"] == usage
    ((model, used),) = result["model_usage"].items()
    assert model.startswith("scripted/")
    assert used == {**usage, "cost_usd": 0.0}
    assert (result["total_cost_usd"], result["permission_denials"]) == (0.0, [])
    assert result["duration_ms"] >= result["duration_api_ms"] >= 0
    assert re.fullmatch(r"[0-9a-f-]{36}", result["session_id"])
    assert re.fullmatch(r"[0-9a-f-]{36}", result["uuid"])


def test_stdin_joins_the_prompt_in_its_own_tags(place: Place) -> None:
    model = place.script({"text": "ok"})
    ran = place.run("-m", model, "-p", "explain", "--output-format", "json", stdin="line 1\nline 2 ü\n")
    assert prompt_of(place, ran) == "explain\n\n<stdin>\nline 1\nline 2 ü\n\n</stdin>"


@pytest.mark.parametrize("arguments", [("-p", "-"), ("-p",), ()])
def test_the_prompt_itself_may_come_from_stdin(place: Place, arguments: tuple[str, ...]) -> None:
    ran = place.run("-m", place.script({"text": "ok"}), *arguments, "--output-format", "json", stdin="what is here?\n")
    assert prompt_of(place, ran).strip() == "what is here?"


def test_a_pipe_without_a_prompt_is_answered_as_text(place: Place) -> None:
    ran = place.run("-m", place.script({"text": "ok"}), stdin="what is here?")
    assert (ran.code, ran.out) == (0, "ok\n")


def test_bytes_that_are_not_text_are_taken_as_well_as_can_be(place: Place) -> None:
    model = place.script({"text": "ok"})
    ran = place.run("-m", model, "-p", b"caf\xe9", "--output-format", "json", stdin=b"\xff\xfe\n")
    assert ran.result["result"] == "ok"
    assert "caf\ufffd" in prompt_of(place, ran)


def prompt_of(place: Place, ran: Ran) -> str:
    """The prompt as the session keeps it."""
    shown = place.run("sessions", "show", ran.result["session_id"], "--json")
    (message, _) = json.loads(shown.out)["messages"]
    return str(message["content"][-1]["text"])


def test_an_answer_with_line_separators_and_emoji_is_one_line_of_json(place: Place) -> None:
    text = 'a\u2028b\u0085c\nd "quoted" 🎉'
    ran = place.run("-m", place.script({"text": text}), "-p", "go", "--output-format", "json")
    assert ran.out.count("\n") == 1
    assert json.loads(ran.out)["result"] == text


# The environment and where it runs.


def test_it_works_in_the_folder_it_is_reported(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("elsewhere\n")
    model = place.script({"tool_calls": [call("file_read", path="a.py")]}, {"text": "{{last_result}}"})
    assert place.run("-C", str(other), "-m", model, "-p", "go").out == "1\telsewhere\n"


def test_a_folder_outside_may_be_added(place: Place, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.txt").write_text("more\n")
    path = str(tmp_path / "more" / "b.txt")
    replies = ({"tool_calls": [call("file_read", path=path)]}, {"text": "{{last_result}}"})
    assert "outside" in place.run("-m", place.script(*replies), "-p", "go").out
    assert place.run("-m", place.script(*replies), "-p", "go", "--add-dir", str(tmp_path / "more")).out == "1\tmore\n"


def test_only_the_tools_that_were_named_exist(place: Place) -> None:
    replies = ({"tool_calls": [call("bash", command="ls")]}, {"text": "{{last_result}}"})
    ran = place.run("-m", place.script(*replies), "-p", "go", "--tools", "file_read,grep_search")
    assert ran.out == "not_found: No tool 'bash'; there is file_read, grep_search.\n"


def test_rules_allow_and_deny(place: Place) -> None:
    model = place.script(*ASKS)
    assert "no one can approve them" in place.run("-m", model, "-p", "go").out
    assert not (place.folder / "made").exists()
    assert "no one can approve" not in place.run("-m", model, "-p", "go", "--allow", "bash(touch *)").out
    assert (place.folder / "made").exists()
    ran = place.run("-m", model, "-p", "go", "--allow", "bash(touch *)", "--deny", "bash(touch *)")
    assert "the rule bash(touch *) denies it" in ran.out


# Exit codes.


def test_a_denied_call_is_reported_and_listed_and_may_fail_the_run(place: Place) -> None:
    model = place.script(*ASKS)
    ran = place.run("-m", model, "-p", "go", "--output-format", "json", env={"AGENTCLI_PERMISSIONS_TRY": "false"})
    assert (ran.code, ran.result["subtype"]) == (0, "success")
    assert ran.result["permission_denials"] == [
        {"tool_name": "bash", "tool_use_id": "call_1_1", "tool_input": {"command": "touch made"}, "kind": "denied"}
    ]
    ran = place.run("-m", model, "-p", "go", "--output-format", "json", "--fail-on-denial")
    assert ran.code == 56
    assert (ran.result["subtype"], ran.result["is_error"]) == ("error_permission", True)
    assert ran.result["terminal_reason"] == "permission_denied"
    ran = place.run("-m", model, "-p", "go", "--fail-on-denial", env={"AGENTCLI_PERMISSIONS_TRY": "false"})
    assert ran.code == 56
    assert "Denied because no one could approve it: bash" in ran.err


def test_the_limit_of_rounds_is_exit_code_53(place: Place) -> None:
    ran = place.run("-m", place.script(*TURN), "-p", "go", "--max-turns", "1", "--output-format", "json")
    assert ran.code == 53
    assert (ran.result["subtype"], ran.result["is_error"]) == ("error_max_turns", True)
    assert (ran.result["result"], ran.result["num_turns"]) == ("Let me look.", 1)
    ran = place.run("-m", place.script(*TURN), "-p", "go", "--max-turns", "1")
    assert (ran.code, ran.out) == (53, "Let me look.\n")
    assert "--max-turns" in ran.err


@pytest.mark.full
def test_a_used_up_budget_is_exit_code_54(place: Place) -> None:
    dear = {**TURN[0], "usage": {"input_tokens": 10, "cost_usd": 0.6}}
    model = place.script(dear, dear, TURN[1])
    ran = place.run("-m", model, "-p", "go", "--max-budget-usd", "1", "--output-format", "json")
    assert ran.code == 54
    assert (ran.result["subtype"], ran.result["num_turns"]) == ("error_max_budget_usd", 2)
    assert ran.result["total_cost_usd"] == pytest.approx(1.2)


def test_a_failing_provider_is_exit_code_1_with_a_result(place: Place) -> None:
    half = {"text": "Half", "error": {"kind": "connection", "message": "The line went dead."}}
    model = place.script(half, half)
    ran = place.run("-m", model, "-p", "go", "--output-format", "json")
    assert ran.code == 1
    assert (ran.result["subtype"], ran.result["is_error"]) == ("error_during_execution", True)
    assert (ran.result["result"], ran.result["terminal_reason"]) == ("The line went dead.", "ConnectionFailed")
    ran = place.run("-m", model, "-p", "go")
    assert (ran.code, ran.out) == (1, "")
    broke_off = "The answer broke off. The line went dead. Continuing where it stopped."
    assert ran.err == f"{broke_off}\nagentcli: The line went dead.\n"


def test_a_key_that_fails_is_reported_without_a_word_on_the_conversation(place: Place) -> None:
    ran = place.run("-m", place.script({"error": {"kind": "auth", "message": "bad key"}}), "-p", "go")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith("set one with agentcli login.\n")


def test_a_file_that_does_not_exist_is_named_on_stderr(place: Place) -> None:
    ran = place.run("-m", place.script({"text": "Sure."}), "-p", "explain @nofile.py")
    assert (ran.code, ran.out) == (0, "Sure.\n")
    assert ran.err == "agentcli: Not found: @nofile.py. The message was sent unchanged.\n"


def test_a_mistyped_flag_is_explained(place: Place) -> None:
    ran = place.run("--max-turn", "3", "-p", "hi")
    assert "unrecognized arguments: --max-turn hi (did you mean --max-turns?)." in ran.err


def test_retries_are_reported_on_stderr(place: Place) -> None:
    model = place.script({"error": {"kind": "overloaded", "message": "No room."}}, {"text": "There."})
    ran = place.run("-m", model, "-p", "go")
    assert (ran.code, ran.out) == (0, "There.\n")
    assert "No room. Retrying in 0 s (retry 1)." in ran.err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("format", ["json", "text"])
def test_a_signal_ends_the_turn_in_order(place: Place, number: signal.Signals, code: int, format: str) -> None:
    model = place.script({"tool_calls": [call("bash", command="echo $$ > pid; exec sleep 30")]}, {"text": "never"})
    # Unconfined, so that the command sees the number that others know it by.
    arguments = ("-m", model, "-p", "go", "--output-format", format, "--permission-mode", "bypassPermissions")
    arguments += ("--sandbox", "danger-full-access")
    with place.start(*arguments) as running:
        pid = place.folder / "pid"
        wait_until(lambda: pid.exists() and bool(pid.read_text().strip()), "the command")
        running.signal(number)
        ran = running.left()
    assert ran.code == code
    if format == "json":
        assert (ran.result["subtype"], ran.result["is_error"]) == ("interrupted", True)
    else:
        assert "--continue" in ran.err
    assert is_clean(ran)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_closed_terminal_leaves_nothing_of_the_sandbox_behind(place: Place) -> None:
    before = sorted(os.listdir(place.folder))
    model = place.script({"tool_calls": [call("bash", command="touch begun; sleep 30")]})
    with place.start("-m", model, "-p", "go", "--permission-mode", "bypassPermissions") as running:
        wait_until((place.folder / "begun").exists, "the command")
        for _ in range(2):  # the shell and the terminal each send one
            running.signal(signal.SIGHUP)
            time.sleep(0.05)
        assert running.left().code == 129
    assert sorted(os.listdir(place.folder)) == sorted([*before, "begun"])


def test_a_run_that_should_outlive_its_terminal_does(place: Place) -> None:
    model = place.script(SLOW)
    command = ["nohup", sys.executable, "-m", "agentcli", "-m", model, "-p", "go", "--output-format", "stream-json",
               "--include-partial-messages"]  # fmt: skip
    with subprocess.Popen(
        command,
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "init" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        rest = process.stdout.read()
        assert process.wait(PATIENCE_S) == 0
    assert json.loads(rest.splitlines()[-1])["result"] == SLOW["text"]


def test_a_second_signal_leaves_at_once(place: Place) -> None:
    model = place.script({"tool_calls": [call("bash", command="trap '' TERM; touch begun; sleep 30; sleep 30")]})
    with place.start("-m", model, "-p", "go", "--permission-mode", "bypassPermissions") as running:
        wait_until((place.folder / "begun").exists, "the command")
        running.signal(signal.SIGINT)
        time.sleep(0.1)
        started = time.monotonic()
        running.signal(signal.SIGINT)
        ran = running.left()
    assert ran.code == 130
    assert time.monotonic() - started < 50  # of the 60 s that the command would take


def test_a_reader_that_leaves_ends_the_run_quietly(place: Place) -> None:
    model = place.script({"text": "x" * 3_000_000, "chunk": 3_000_000})
    command = [sys.executable, "-m", "agentcli", "-m", model, "-p", "go"]
    with subprocess.Popen(
        command,
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        complaints = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 1
    assert "Traceback" not in complaints
    assert "Exception ignored" not in complaints


# On a terminal.


def shown_on_a_terminal(place: Place, *replies: dict[str, object]) -> str:
    main, side = pty.openpty()
    command = [sys.executable, "-m", "agentcli", "-m", place.script(*replies), "-p", "go"]
    with subprocess.Popen(
        command, cwd=place.folder, env={**place.environment, "TERM": "xterm"}, stdin=side, stdout=side, stderr=side
    ) as process:
        os.close(side)
        shown = b""
        while True:
            try:
                piece = os.read(main, 65_536)
            except OSError:  # the other side has been closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait(PATIENCE_S) == 0
    os.close(main)
    return shown.decode().replace("\r\n", "\n")


def test_on_a_terminal_the_text_appears_as_it_comes_and_is_made_harmless(place: Place) -> None:
    assert shown_on_a_terminal(place, {"text": "One \x1b]0;owned\x07\x1b[2Jtwo."}) == "One two.\n"


def test_on_a_terminal_each_call_has_a_line_of_its_own_and_no_blank_one_before_it(place: Place) -> None:
    calls = [{"name": "bash", "input": {"command": f"echo {word}"}} for word in ("a", "b")]
    shown = shown_on_a_terminal(place, {"text": "I look.", "tool_calls": calls}, {"text": "Done."})
    assert shown == "I look.\n✓ Run echo a · 1 line\n✓ Run echo b · 1 line\nDone.\n"


# Sessions.


def session_of(ran: Ran) -> str:
    return str(ran.result["session_id"])


def messages_of(place: Place, id: str) -> list[str]:
    shown = json.loads(place.run("sessions", "show", id, "--json").out)
    texts = []
    for message in shown["messages"]:
        texts += [block["text"] for block in message["content"] if block["type"] == "text"]
    return [text for text in texts if not text.startswith("<system-reminder>")]


def answer(place: Place, text: str, *arguments: str) -> Ran:
    ran = place.run("-m", place.script({"text": text}), "--output-format", "json", *arguments)
    assert ran.code == 0, ran.err
    return ran


def test_continue_resumes_the_newest_session_of_this_directory(place: Place, tmp_path: Path) -> None:
    first = answer(place, "one", "-p", "first")
    other = tmp_path / "other"
    other.mkdir()
    answer(place, "elsewhere", "-p", "x", "-C", str(other))
    second = answer(place, "two", "-p", "second", "--continue")
    assert session_of(second) == session_of(first)
    assert messages_of(place, session_of(first)) == ["first", "one", "second", "two"]


def test_resume_takes_an_id_its_beginning_or_a_name(place: Place) -> None:
    first = session_of(answer(place, "one", "-p", "first", "--name", "my work"))
    answer(place, "other", "-p", "other")
    for which in (first, first[:20], "my work"):
        assert session_of(answer(place, "more", "-p", "go on", "--resume", which)) == first
    assert messages_of(place, first).count("more") == 3


def test_a_fork_leaves_the_session_as_it_is(place: Place) -> None:
    first = session_of(answer(place, "one", "-p", "first"))
    fork = session_of(answer(place, "two", "-p", "second", "--continue", "--fork-session", "--name", "copy"))
    assert fork != first
    assert messages_of(place, first) == ["first", "one"]
    assert messages_of(place, "copy") == ["first", "one", "second", "two"]


def test_a_session_may_be_given_its_id_once(place: Place) -> None:
    id = "12345678-1234-4234-8234-123456789abc"
    assert session_of(answer(place, "one", "-p", "first", "--session-id", id.upper())) == id
    ran = place.run("-m", place.script({"text": "x"}), "-p", "x", "--session-id", id)
    assert ran.code == 1
    assert f"--resume {id}" in ran.err


def test_no_session_stores_nothing(place: Place) -> None:
    ran = answer(place, "one", "-p", "first", "--no-session")
    assert not (place.home / "state" / "sessions.db").exists()
    assert place.run("sessions", "show", session_of(ran), "--json").code == 1


def test_a_session_that_is_open_elsewhere_is_refused_and_can_be_forked(place: Place) -> None:
    first = session_of(answer(place, "one", "-p", "first"))
    model = place.script({"tool_calls": [call("bash", command="touch begun; sleep 30")]})
    with place.start("-m", model, "-p", "go", "--continue", "--permission-mode", "bypassPermissions") as running:
        wait_until((place.folder / "begun").exists, "the command")
        ran = place.run("-m", place.script({"text": "x"}), "-p", "x", "--resume", first)
        assert ran.code == 1
        assert "open in another agentcli" in ran.err
        forked = answer(place, "two", "-p", "second", "--resume", first, "--fork-session")
        assert session_of(forked) != first
        running.signal(signal.SIGINT)
        assert running.left().code == 130


def test_a_session_killed_in_the_middle_of_a_call_continues_with_a_valid_request(place: Place) -> None:
    replies = (
        {
            "text": "Look.",
            "tool_calls": [call("file_read", path="a.py"), call("bash", command="touch begun; sleep 30")],
        },
    )
    arguments = ("-p", "go", "--permission-mode", "bypassPermissions")
    with place.start("-m", place.script(*replies), *arguments) as running:
        wait_until((place.folder / "begun").exists, "the command")
        running.signal(signal.SIGKILL)
        running.left()
    ran = answer(place, "Back: {{last_result}}", "-p", "again", "--continue")
    assert "may have partially run" in ran.result["result"]
    shown = json.loads(place.run("sessions", "show", session_of(ran), "--json").out)["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant"]
    asked = [block["id"] for block in shown[1]["content"] if block["type"] == "tool_use"]
    assert [block["tool_use_id"] for block in shown[2]["content"][:2]] == asked
    assert all(block["type"] == "text" for block in shown[2]["content"][2:])


def test_an_interrupted_answer_is_kept_and_continues(place: Place) -> None:
    with place.start("-m", place.script(SLOW), "-p", "count", "--output-format", "stream-json",
                     "--include-partial-messages") as running:  # fmt: skip
        running.wait_for(lambda line: line.get("event", {}).get("type") == "content_block_delta")
        running.signal(signal.SIGINT)
        ran = running.left()
    assert ran.code == 130
    assert ran.result["result"].startswith("one")
    again = answer(place, "and on", "-p", "go on", "--continue")
    assert messages_of(place, session_of(again))[0] == "count"
    assert messages_of(place, session_of(again))[1].startswith("one")


def test_a_full_disk_ends_the_run_with_a_clear_error(place: Place) -> None:
    (place.home / "state").mkdir(parents=True)
    (place.home / "state" / "sessions.db").mkdir()
    ran = place.run("-m", place.script({"text": "x"}), "-p", "x", "--output-format", "json")
    assert ran.code == 1
    assert "sessions.db" in ran.result["result"]
    assert is_clean(ran)


def test_permanent_grants_of_this_project_run_unasked(place: Place) -> None:
    grants = place.home / "state" / "grants.json"
    grants.parent.mkdir(parents=True)
    grants.write_text(json.dumps({"/elsewhere": ["bash(touch made)"]}))
    place.run("-m", place.script(*ASKS), "-p", "go")
    assert not (place.folder / "made").exists()
    grants.write_text(json.dumps({str(place.folder): ["bash(touch made)"]}))
    ran = place.run("-m", place.script(*ASKS), "-p", "go")
    assert (place.folder / "made").exists()
    assert is_clean(ran)


def test_a_broken_file_of_grants_is_reported_and_grants_nothing(place: Place) -> None:
    (place.home / "state").mkdir(parents=True)
    (place.home / "state" / "grants.json").write_text("[")
    ran = place.run("-m", place.script(*ASKS), "-p", "go")
    assert ran.code == 0
    assert "grants.json could not be read" in ran.err
    assert not (place.folder / "made").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "input", "told"),
    [
        ("file_read", {"path": "none.txt"}, "not_found (ENOENT): none.txt does not exist."),
        ("file_read", {"path": "."}, "invalid_parameters (EISDIR): . is a directory: use file_list."),
        ("file_list", {"path": "none"}, "not_found (ENOENT): none does not exist."),
        ("file_write", {"path": "a.txt/b", "content": ""}, "invalid_parameters (ENOTDIR): Could not write a.txt/b: "),
        ("file_read", {}, "invalid_parameters: Wrong arguments for file_read: "),
        ("grpe", {}, "not_found: No tool 'grpe'; there is "),
        ("bash", {"command": "curl -sO https://example.org/x"}, "permission_denied: "),
        ("bash", {"command": "sleep 5", "timeout_ms": 200}, "timeout: ended after 0.2 s; "),
    ],
)
def test_an_error_is_its_kind_its_code_and_a_message_also_to_the_model(
    place: Place, name: str, input: dict[str, Any], told: str
) -> None:
    (place.folder / "a.txt").write_text("a\n")
    mode = "acceptEdits" if name != "bash" or "timeout_ms" not in input else "bypassPermissions"
    script = place.script({"tool_calls": [{"id": "c", "name": name, "input": input}]}, {"text": "{{last_result}}"})
    ran = place.run("-p", "go", "-m", script, "--permission-mode", mode)
    assert ran.out.startswith(told)
    [line] = place.run("tools", "run", name, json.dumps(input), "--permission-mode", mode).lines
    kind, code = line["error"]["kind"], line["error"]["code"]
    assert line["content"].startswith(told)
    assert line["content"].startswith(f"{kind}: " if code == kind else f"{kind} ({code}): ")
    assert line["error"]["message"] in line["content"]


def test_a_session_that_is_continued_gets_the_name_it_is_given(place: Place) -> None:
    for arguments in (("--name", "one"), ("-c", "-n", "two"), ("-r", "two", "-n", "three")):
        assert place.run("-m", place.script({"text": "x"}), "-p", "go", *arguments).code == 0
    assert "three" in place.run("sessions", "list").out
    assert place.run("sessions", "show", "two").code == 1


def test_the_home_of_somebody_who_is_not_known_is_an_error_of_usage(place: Place) -> None:
    for arguments in (("-p", "go"), ("sessions", "list")):
        ran = place.run(*arguments, env={"AGENTCLI_HOME": "~nobody-here/x"})
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("agentcli: AGENTCLI_HOME: ~nobody-here/x")


@pytest.mark.parametrize("names", [",", " , "])
def test_no_tools_at_all_are_asked_for_by_name(place: Place, names: str) -> None:
    ran = place.run("-m", place.script({"text": "x"}), "-p", "go", "--tools", names)
    assert (ran.code, ran.out) == (2, "")
    assert "--tools none" in ran.err


def test_sessions_are_listed_up_to_a_limit_and_names_that_two_have_are_reported(place: Place) -> None:
    for _ in range(2):
        place.run("-m", place.script({"text": "x"}), "-p", "go", "--name", "twin")
    for limit, count in (("0", 2), ("1", 1)):
        assert len(place.run("sessions", "list", "--limit", limit).out.splitlines()) == count
    for limit in ("-1", "99999999999999999999"):
        assert place.run("sessions", "list", "--limit", limit).code == 2
    assert "Several sessions are named 'twin'" in place.run("sessions", "show", "twin").err


def test_an_overflow_does_not_advise_a_command_that_one_run_has_not(place: Place) -> None:
    model = place.script({"error": {"kind": "context_overflow", "message": "too long"}})
    assert "/clear" not in place.run("-m", model, "-p", "go").err


def test_another_model_may_make_the_plan(place: Place) -> None:
    model, planner = place.script({"text": "done"}), place.script({"text": "# Plan\nfirst this"})
    env = {"AGENTCLI_PROVIDER_PLAN_MODEL": planner}
    planned = place.run("-m", model, "-p", "go", "--permission-mode", "plan", env=env)
    assert (planned.out, place.run("-m", model, "-p", "go", "-c", env=env).out) == ("# Plan\nfirst this\n", "done\n")


def test_a_session_that_continues_without_plan_mode_says_so_once(place: Place) -> None:
    model = place.script({"text": "looked"})
    ran = place.run("-m", model, "--permission-mode", "plan", "-p", "look", "--output-format", "json")
    for _ in range(2):
        assert place.run("-m", model, "-c", "-p", "go on").code == 0
    messages = json.loads(place.run("sessions", "show", ran.result["session_id"], "--json").out)["messages"]
    assert [str(messages).count(f"Plan mode is {state}") for state in ("on", "off")] == [1, 1]
