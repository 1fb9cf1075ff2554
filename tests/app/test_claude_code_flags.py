"""The flags of Claude Code: scripts that use them work unchanged, and a mistyped flag is still an error."""

from __future__ import annotations

import json

import pytest

from agentcli.cli.claude_code_flags import apply_agent, split_rules, split_tools
from agentcli.cli.options import config_for, make_main_parser
from tests.app.running import Place, call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("place_with_a_file")]

WRITES = ({"tool_calls": [call("bash", command="touch made")]}, {"text": "done"})
SETTINGS = {
    "permissions": {"defaultMode": "acceptEdits", "deny": ["Bash(rm *)"]},
    "sandbox": {"enabled": True, "network": {"allowedDomains": ["example.org"]}},
    "env": {"COLOUR": "red"},
}


def test_an_agent_keeps_its_tools_when_the_session_is_opened_again(place: Place) -> None:
    agents = {"reader": {"description": "reads", "prompt": "Read.", "tools": ["Read"]}}
    options = make_main_parser({}).parse_args(["--agents", json.dumps(agents), "--agent", "reader"])
    config = config_for(options, place.folder)
    assert [apply_agent(options, config).settings.tools.only for _ in range(2)] == [("file_read",)] * 2


def test_rules_are_separated_outside_of_brackets() -> None:
    assert split_rules("Bash(git log *),Edit Read(a, (b)), mcp__x__y") == [
        "Bash(git log *)", "Edit", "Read(a, (b))", "mcp__x__y",
    ]  # fmt: skip


def test_a_list_of_tools_in_the_words_of_claude_code_keeps_those_of_servers() -> None:
    assert split_tools("Read,Bash,NotebookEdit") == ["file_read", "bash", "mcp__*"]
    assert split_tools("") == ["none", "mcp__*"]
    assert split_tools("default") is None
    assert split_tools("file_read, none") == ["file_read", "none"]


def test_a_script_for_claude_code_runs_unchanged(place: Place) -> None:
    ran = place.run(
        "-p", "go", "--model", place.script(*WRITES), "--allowedTools", "Bash(touch *), Edit", "Read",
        "--disallowed-tools", "Bash(curl *)", "--tools", "Read,Bash", "--no-session-persistence", "--betas", "x,y",
        "--max-thinking-tokens=2000", "--agents", json.dumps({"tester": {"description": "tests", "prompt": "Test."}}),
        "--mcp-config", '{"mcpServers": {}}', "--settings", json.dumps(SETTINGS), "--debug",
    )  # fmt: skip
    assert (ran.code, (place.folder / "made").exists()) == (0, True)
    assert "--debug, --betas, --max-thinking-tokens: accepted for Claude Code's scripts" in ran.err
    assert "env.COLOUR: export it in your shell" in ran.err


def test_all_permissions_are_skipped_only_where_that_is_asked_for(place: Place) -> None:
    script = place.script({"tool_calls": [call("file_write", path="made", content="x")]}, {"text": "done"})
    modes = (("--permission-mode", "manual"), ("--dangerously-skip-permissions",))
    for flags, is_made in zip(modes, (False, True), strict=True):
        assert place.run("-p", "go", "--model", script, *flags).code == 0
        assert (place.folder / "made").exists() is is_made


def test_an_agent_answers_with_its_prompt_and_its_tools(place: Place) -> None:
    agents = {"reader": {"description": "reads", "prompt": "You only read.", "tools": ["Read"], "model": "inherit"}}
    flags = ("-p", "go", "--model", place.script({"text": "ok"}), "--agents", json.dumps(agents))
    ran = place.run(*flags, "--agent", "reader", "--output-format", "stream-json")
    assert ran.of("system", "init")[0]["tools"] == ["file_read"]
    ran = place.run(*flags, "--agent", "raeder")
    assert (ran.code, "did you mean reader?" in ran.err) == (2, True)


def test_a_session_resumes_at_a_message(place: Place) -> None:
    first = place.run("-p", "one", "-m", place.script({"text": "1"}, {"text": "2"}), "--output-format", "stream-json")
    id = first.result["session_id"]
    place.run("-p", "two", "-m", place.script({"text": "2"}), "--resume", id)
    shown = json.loads(place.run("sessions", "show", id, "--json").out)
    answer = next(entry["id"] for entry in shown["entries"] if entry["body"]["kind"] == "assistant")
    resumed = place.script({"text": "3"})
    assert place.run("-p", "three", "-m", resumed, "--resume", id, "--resume-session-at", answer).code == 0
    messages = json.loads(place.run("sessions", "show", id, "--json").out)["messages"]
    assert "two" not in json.dumps(messages)
    assert "three" in json.dumps(messages)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--alowedTools", "Read"), "did you mean --allowedTools?"),
        (("--allowedTools", "Raed"), "did you mean"),
        (("--allowedTools", "Bash(git"), "is not a permission rule"),
        (("--settings", "{"), "--settings is not valid JSON"),
        (("--settings", '{"premissions": {}}'), "did you mean permissions"),
        (("--agents", "{}x"), "--agents is not valid JSON"),
        (("--agents", '{"a": {}}'), "--agents: a: Object missing required field"),
        (("--setting-sources", "usr"), "takes user, project and local"),
    ],
)
def test_a_mistake_is_an_error(place: Place, flags: tuple[str, ...], why: str) -> None:
    ran = place.run("-p", "go", "--model", place.script({"text": "ok"}), *flags)
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err


def test_the_rules_of_sources_that_are_not_named_do_not_count(place: Place) -> None:
    place.home.mkdir()
    (place.home / "config.toml").write_text('[permissions]\ndeny = ["bash"]\n')
    script = place.script(*WRITES)
    for flags, is_made in (((), False), (("--setting-sources", "project"), True)):
        assert place.run("-p", "go", "--model", script, "--allow", "bash", *flags).code == 0
        assert (place.folder / "made").exists() is is_made


def test_commands_and_agents_inherit_the_model(place: Place) -> None:
    (place.home / "commands").mkdir(parents=True)
    (place.home / "commands/greet.md").write_text("---\nmodel: inherit\n---\nSay hello.\n")
    agents = {"tester": {"description": "tests", "prompt": "Test.", "model": "inherit"}}
    delegates = {"tool_calls": [call("create_subagent", task="test", agent="tester")]}
    script = place.script(delegates, {"text": "tested"}, {"text": "hello"})
    ran = place.run("-p", "/greet", "--model", script, "--agents", json.dumps(agents))
    assert (ran.code, ran.out, ran.err) == (0, "hello\n", "")
