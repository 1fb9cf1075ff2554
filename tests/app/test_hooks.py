"""Hooks written for other tools decide about calls, prompts and ends of turns; one that fails decides nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, Ran, call

DONE = {"text": "done"}
BYPASS = ("--permission-mode", "bypassPermissions")
WRITE = {"tool_calls": [call("file_write", path="made", content="x")]}


def hook(place: Place, event: str, command: str, **more: Any) -> None:
    """Add a hook to the person's settings."""
    matcher, rest = more.pop("matcher", ""), "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
    place.home.mkdir(exist_ok=True)
    with (place.home / "config.toml").open("a") as file:
        file.write(f'[[hooks.{event}]]\nmatcher = {json.dumps(matcher)}\n[[hooks.{event}.hooks]]\ntype = "command"\n')
        file.write(f"command = {json.dumps(command)}\n{rest}")


def says(place: Place, name: str, answer: dict[str, Any] | str, code: int = 0) -> str:
    """A hook's command that keeps what it was given, and answers so."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    stream = "2" if code else "1"
    file = place.folder.parent / f"{name}.sh"
    file.write_text(f"cat >>{place.folder.parent}/{name}.in\ncat >&{stream} <<'END'\n{text}\nEND\nexit {code}\n")
    return f"sh {file}"


def given(place: Place, name: str) -> dict[str, Any]:
    text = (place.folder.parent / f"{name}.in").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def stream(place: Place, *replies: dict[str, Any], flags: tuple[str, ...] = BYPASS, code: int = 0) -> Ran:
    ran = place.run("-p", "go", "-m", place.script(*replies, DONE), "--output-format", "stream-json", *flags)
    assert ran.code == code, (ran.out, ran.err)
    return ran


def results(ran: Ran) -> list[str]:
    return [line["message"]["content"][0].get("content", "") for line in ran.of("user")]


def decided(decision: str, **more: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": decision, **more}}


def test_exit_2_refuses_a_call_and_the_model_reads_why(place: Place) -> None:
    hook(place, "PreToolUse", says(place, "no", "not on a Friday", 2), matcher="Write|Edit")
    ran = stream(place, WRITE)
    assert "not on a Friday" in results(ran)[0]
    assert not (place.folder / "made").exists()
    told = given(place, "no")
    assert (told["tool_name"], told["hook_event_name"], told["permission_mode"]) == (
        "Write", "PreToolUse", "bypassPermissions",
    )  # fmt: skip
    assert told["tool_input"]["file_path"] == str(place.folder / "made")
    assert told["tool_input"]["path"] == "made"
    (shown,) = ran.of("system", "hook")
    assert (shown["hook_event"], shown["decision"], shown["reason"]) == ("PreToolUse", "deny", "not on a Friday")


@pytest.mark.parametrize(
    ("answer", "is_made"),
    [
        (decided("deny", permissionDecisionReason="no"), False),
        ({"decision": "block", "reason": "no"}, False),
        (decided("allow"), True),
        ({"decision": "approve"}, True),
        ({"continue": False, "stopReason": "enough"}, False),
        ({"continue": "false", "stopReason": "enough"}, False),
    ],
)
def test_an_answer_in_json_decides(place: Place, answer: dict[str, Any], *, is_made: bool) -> None:
    hook(place, "PreToolUse", says(place, "json", answer))
    stream(place, WRITE, flags=() if is_made else BYPASS, code=130 if "continue" in answer else 0)
    assert (place.folder / "made").exists() is is_made


def test_calls_skipped_because_of_a_hook_are_not_blamed_on_the_user(place: Place) -> None:
    hook(place, "PreToolUse", says(place, "json", {"continue": False, "stopReason": "enough"}))
    ran = stream(place, {"tool_calls": [WRITE["tool_calls"][0], call("bash", command="touch other")]}, code=130)
    assert "Not run: another call was declined." in ran.out
    assert "user declined" not in ran.out


BANNER = "Now using node v22 {default}\n"


@pytest.mark.parametrize(
    "said",
    [
        BANNER + json.dumps(decided("deny")),
        BANNER + json.dumps(decided("deny"), indent=2) + "\nbye",
        json.dumps(decided("allow")) + "\n" + json.dumps(decided("deny")),
        json.dumps({"permissionDecision": "deny", "hookSpecificOutput": None}),
        json.dumps({"hookSpecificOutput": {"decision": "deny"}}),
        json.dumps({"hookSpecificOutput": {"decision": "block"}}),
        json.dumps({"decision": "block", **decided("allow")}),
        json.dumps([{"decision": "block"}]),
        '"deny"',
        "{debug}\n" + json.dumps(decided("deny")),
    ],
)
def test_a_verdict_counts_beside_other_output(place: Place, said: str) -> None:
    hook(place, "PreToolUse", says(place, "banner", said))
    (shown,) = stream(place, WRITE).of("system", "hook")
    assert (shown["decision"], bool(shown["problem"])) == ("deny", "{debug}" in said)
    assert not (place.folder / "made").exists()


@pytest.mark.parametrize("word", ["denied", "Allow", True])
def test_a_decision_that_is_not_a_known_word_denies_and_is_reported(place: Place, word: Any) -> None:
    command = says(place, "odd", decided(word))
    hook(place, "PreToolUse", command)
    ran = stream(place, WRITE)
    assert not (place.folder / "made").exists()
    (told,) = (line["text"] for line in ran.of("system", "notice"))
    assert f"`{command}`: its decision {word!r} is not allow, ask or deny" in told
    assert repr(word) in results(ran)[0]


def test_plain_text_may_hold_what_looks_like_json(place: Place) -> None:
    text = 'int main()\n{\n  return 0;\n}\n{"name": "x",}\n{"name": "y"}'
    hook(place, "SessionStart", says(place, "code", text), onError="deny")
    hook(place, "PreToolUse", "echo all is well")
    ran = stream(place, WRITE)
    assert json.dumps(text)[1:-1] in place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert not ran.of("system", "notice")
    assert (place.folder / "made").exists()


def test_an_approval_of_a_hook_overrules_no_deny_rule(place: Place) -> None:
    hook(place, "PreToolUse", says(place, "yes", decided("allow")))
    assert "denies it" in results(stream(place, WRITE, flags=("--deny", "Write")))[0]


def test_a_hook_that_asks_asks(place: Place) -> None:
    hook(place, "PreToolUse", says(place, "ask", decided("ask", permissionDecisionReason="look first")))
    assert "look first, and no one can approve it" in results(stream(place, WRITE))[0]


def test_arguments_are_changed_under_the_field_s_names(place: Place) -> None:
    updated = {"file_path": str(place.folder / "other"), "content": "y"}
    hook(place, "PreToolUse", says(place, "up", decided("allow", updatedInput=updated)), matcher="^Write$")
    stream(place, WRITE)
    assert (place.folder / "other").read_text() == "y"
    assert not (place.folder / "made").exists()


def test_context_reaches_the_model(place: Place) -> None:
    hook(place, "PreToolUse", says(place, "before", decided("allow", additionalContext="before it")))
    hook(place, "PostToolUse", says(place, "after", {"hookSpecificOutput": {"additionalContext": "after it"}}))
    hook(place, "UserPromptSubmit", "echo with the prompt")
    hook(place, "SessionStart", "echo at the start")
    ran = stream(place, WRITE)
    shown = place.run("sessions", "show", ran.result["session_id"], "--json").out
    for text in ("before it", "after it", "with the prompt", "at the start"):
        assert text in shown
    assert given(place, "after")["tool_response"]["content"] == "Created made."


@pytest.mark.parametrize("verdict", ["echo no >&2; exit 2", f"echo '{json.dumps(decided('deny'))}'"])
def test_a_verdict_counts_when_the_hook_has_ended_whoever_holds_its_output(place: Place, verdict: str) -> None:
    hook(place, "PreToolUse", f"sleep 30 & sleep 0.1; {verdict}", timeout=20)
    ran = stream(place, WRITE)
    (shown,) = ran.of("system", "hook")
    assert (shown["decision"], shown["problem"], shown["duration_ms"] < 10_000) == ("deny", "", True)
    assert not (place.folder / "made").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "python3 /nowhere/guard.py",
        "/nowhere/guard",
        "sh /nowhere/guard.sh",
        "sleep 30",
        "echo '{not json'",
        "echo hi; echo \"{'decision': 'deny'}\"",
        """echo '[INFO] {"decision": "block"}'""",
    ],
)
@pytest.mark.parametrize("on_error", ["allow", "deny"])
def test_a_hook_that_could_not_run_is_not_a_denial_unless_that_is_wanted(
    place: Place, command: str, on_error: str
) -> None:
    hook(place, "PreToolUse", command, onError=on_error, timeout=1)
    ran = stream(place, WRITE)
    assert (place.folder / "made").exists() is (on_error == "allow")
    assert any(line["problem"] for line in ran.of("system", "hook"))


def test_one_that_fails_otherwise_is_reported_and_passed_over(place: Place) -> None:
    hook(place, "PreToolUse", "echo broken >&2; exit 3")
    ran = stream(place, WRITE)
    assert (place.folder / "made").exists()
    assert "broken" in " ".join(line["text"] for line in ran.of("system", "notice"))


@pytest.mark.slow
def test_processes_started_by_a_slow_hook_end_with_it(place: Place) -> None:
    hook(place, "PreToolUse", f"sleep 47 & echo $! >{place.folder.parent}/pid; wait", timeout=1)
    stream(place, WRITE)
    pid = int((place.folder.parent / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_prompt_may_be_refused(place: Place) -> None:
    hook(place, "UserPromptSubmit", says(place, "prompt", "no secrets here", 2))
    ran = stream(place, flags=(), code=1)
    assert "no secrets here" in ran.result["result"]
    assert given(place, "prompt")["prompt"] == "go"
    shown = json.loads(place.run("sessions", "show", ran.result["session_id"], "--json").out)
    assert '"go"' not in json.dumps(shown["messages"])


def test_a_stop_hook_lets_the_model_continue(place: Place) -> None:
    flag = place.folder.parent / "once"
    hook(place, "Stop", f"test -e {flag} && exit 0; touch {flag}; echo run the tests first >&2; exit 2")
    ran = place.run("-p", "go", "-m", place.script({"text": "one"}, {"text": "two"}), "--output-format", "json")
    assert json.loads(ran.out)["result"] == "two"


def test_a_stop_hook_without_end_is_not_respected_forever(place: Place) -> None:
    hook(place, "Stop", "echo more >&2; exit 2")
    ran = place.run("-p", "go", "-m", place.script(*({"text": "x"} for _ in range(9))), "--output-format", "json")
    assert json.loads(ran.out)["num_turns"] == 6


def test_calls_of_subagents_pass_the_same_hooks(place: Place) -> None:
    hook(place, "PreToolUse", says(place, "no", "never", 2), matcher="Write")
    hook(place, "SubagentStop", says(place, "end", ""))
    child = place.script(WRITE, {"text": "tried"})
    stream(place, {"tool_calls": [call("create_subagent", task="write", model=child)]})
    assert not (place.folder / "made").exists()
    told = given(place, "no")
    assert (told["agent_id"], told["agent_type"]) == ("general-1", "general")
    assert given(place, "end")["hook_event_name"] == "SubagentStop"


def test_a_permission_request_is_answered_in_the_person_s_place(place: Place) -> None:
    allow = {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}}
    hook(place, "PermissionRequest", says(place, "request", allow), matcher="Write")
    with place.talk(place.script(WRITE, DONE)) as running:
        running.say("go")
        end = running.wait_for(lambda line: line.get("result") == "done")
    assert (place.folder / "made").exists()
    entries = json.loads(place.run("sessions", "show", end["session_id"], "--json").out)["entries"]
    assert [entry["body"]["answer"] for entry in entries if "answer" in entry["body"]] == ["allowed by a hook"]
    told = given(place, "request")
    assert (told["tool_name"], told["tool_input"]["file_path"]) == ("Write", str(place.folder / "made"))


@pytest.mark.slow
def test_a_project_s_hooks_count_as_they_were_trusted(place: Place) -> None:
    file = place.folder / ".agentcli/hooks.json"
    file.parent.mkdir()
    entry = {"matcher": "Write", "hooks": [{"type": "command", "command": "echo no >&2; exit 2", "timeout": 5}]}
    file.write_text(json.dumps({"hooks": {"PreToolUse": [entry], "Nonsense": []}}))
    stream(place, WRITE)
    assert (place.folder / "made").exists()
    (place.folder / "made").unlink()
    trusted = place.run("config", "trust")
    assert trusted.code == 0
    assert "echo no >&2; exit 2" in trusted.out
    assert "no" in results(stream(place, WRITE))[0]
    file.write_text(file.read_text().replace("exit 2", "exit 0"))
    assert "config trust" in stream(place).err


def test_a_condition_narrows_a_hook(place: Place) -> None:
    hook(place, "PreToolUse", "echo no >&2; exit 2", matcher="Bash", **{"if": "Bash(git push *)"})
    push, other = ({"tool_calls": [call("bash", command=text)]} for text in ("git push origin", "echo fine"))
    first, second = results(stream(place, push, other))
    assert "no" in first
    assert "fine" in second


def test_secrets_in_what_hooks_say_are_masked(place: Place) -> None:
    place.environment["MY_API_KEY"] = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
    hook(place, "UserPromptSubmit", "echo key $MY_API_KEY; echo sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789")
    ran = stream(place)
    shown = place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert "abcdefghijklmnopqrstuvwxyz" not in shown


def test_list_and_test(place: Place) -> None:
    assert "No hook" in place.run("hooks", "list").out
    hook(place, "PreToolUse", says(place, "no", "never", 2), matcher="Write")
    (row,) = json.loads(place.run("hooks", "list", "--json").out)
    assert (row["event"], row["matcher"]) == ("PreToolUse", "Write")
    tried = place.run("hooks", "test", "PreToolUse", "--tool", "Write", "--input", '{"path": "a"}', "--json")
    assert json.loads(tried.out)["answer"]["decision"] == "deny"
    assert "No hooks match" in place.run("hooks", "test", "PreToolUse", "--tool", "Read").out
    wrong = place.run("hooks", "test", "PreTolUse")
    assert wrong.code == 2
    assert "Unknown event 'PreTolUse'. Choose one of" in wrong.err


def test_fields_that_agentcli_fills_in_are_a_usage_error(place: Place) -> None:
    hook(place, "Stop", "cat; exit 2")
    reserved = place.run("hooks", "test", "Stop", "--input", '{"event": "Stop"}')
    assert reserved.code == 2
    assert "--input cannot contain event: agentcli fills in event and call itself" in reserved.err
    wrong = place.run("hooks", "test", "Stop", "--input", '{"agent_id": 2}')
    assert (wrong.code, "agent_id must be a string" in wrong.err) == (2, True)
    # The arguments of a tool may have these names.
    assert "No hooks match" in place.run("hooks", "test", "PreToolUse", "--input", '{"event": "Stop"}').out


def test_bare_runs_none(place: Place) -> None:
    hook(place, "PreToolUse", "exit 2")
    stream(place, WRITE, flags=(*BYPASS, "--bare"))
    assert (place.folder / "made").exists()


def test_a_hook_s_environment_names_the_project(place: Place) -> None:
    hook(place, "Stop", 'echo "$CLAUDE_PROJECT_DIR|$AGENTCLI_PROJECT_DIR|$ANTHROPIC_API_KEY" >"$HOME/env"')
    place.environment["ANTHROPIC_API_KEY"] = "sk-ant-secret-0123456789abcdef"
    stream(place)
    folder = os.fspath(place.folder)
    assert (place.folder.parent / "env").read_text() == f"{folder}|{folder}|\n"
