"""The subcommands, run as people and scripts run them."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, Ran
from tests.processes import command_lines

pytestmark = pytest.mark.slow  # each test starts the program

TURN = """\
{"text": "Let me look.", "tool_calls": [{"name": "file_read", "input": {"path": "a.py"}}]}
{"text": "It prints hi."}
"""


class Program(Place):
    """agentcli in a directory and a home of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        del self.environment["AGENTCLI_RETRY_INITIAL_DELAY"]  # `config show` would tell it
        (self.folder / "a.py").write_text('print("hi")\n')

    def __call__(self, *arguments: str, stdin: str = "", **env: str) -> Ran:
        return self.run(*arguments, stdin=stdin.encode("utf-8", "surrogateescape"), env=env)

    def session(self) -> str:
        """Run a short session; gives its id."""
        (self.folder / "turn.jsonl").write_text(TURN)
        run = self("-p", "what is a.py?", "-m", "scripted/turn.jsonl", "--output-format", "json", "--name", "first")
        return str(json.loads(run.out)["session_id"])


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_the_tour_needs_no_key_and_says_that_it_is_scripted(program: Program) -> None:
    run = program("demo")
    assert run.code == 0, run.err
    assert "SCRIPTED" in run.out
    assert "+     return net + net * TAX" in run.out
    assert "test passes now" in run.out


def test_sessions_are_listed_newest_first_with_name_and_title(program: Program) -> None:
    id = program.session()
    rows = json.loads(program("sessions", "list", "--json").out)
    assert [(row["id"], row["name"], row["title"]) for row in rows] == [(id, "first", "what is a.py?")]
    assert id in program("sessions", "list").out


def test_sessions_of_other_directories_are_listed_only_on_request(program: Program, tmp_path: Path) -> None:
    id = program.session()
    program.folder = tmp_path / "elsewhere"
    program.folder.mkdir()
    assert "No sessions" in program("sessions", "list").out
    assert id in program("sessions", "list", "--all").out


def test_a_session_is_shown_as_the_next_request_would_send_it(program: Program) -> None:
    id = program.session()
    shown = json.loads(program("sessions", "show", id[:13], "--json").out)
    assert shown["session_id"] == id
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant", "user", "assistant"]
    assert shown["messages"][2]["content"][0]["type"] == "tool_result"
    kinds = {entry["body"]["kind"] for entry in shown["entries"]}
    assert kinds == {"user", "assistant", "tool_result", "calls_started"}
    assert "It prints hi." in program("sessions", "show", "first").out


def test_an_unknown_session_is_an_error_that_says_what_to_do(program: Program) -> None:
    run = program("sessions", "show", "0000")
    assert run.code == 1
    assert "agentcli sessions list" in run.err


def test_tools_are_listed_with_source_and_schema(program: Program) -> None:
    tools = {tool["name"]: tool for tool in json.loads(program("tools", "list", "--json").out)}
    files, commands = "file_read file_write file_edit file_list grep_search", "bash jobs think todo skill memory recall"
    assert set(tools) == set(f"{files} {commands} create_subagent ask_user read_more web_fetch web_search".split())
    assert tools["bash"]["source"] == "builtin"
    assert tools["file_read"]["input_schema"]["required"] == ["path"]
    assert "grep_search" in program("tools", "list").out


def test_calls_are_run_one_after_another_and_answered_in_the_contracts_form(program: Program) -> None:
    calls = [
        {"id": "1", "name": "file_read", "input": {"path": "a.py"}},
        {"id": "2", "name": "file_write", "input": {"path": "a.py", "content": "x = 1\n"}},
        {"id": "3", "name": "bash", "input": {"command": "cat a.py"}},
        {"id": "4", "name": "nope", "input": {}},
        {"id": "5", "name": "file_read", "input": {}},
    ]
    stdin = "\n".join(map(json.dumps, calls)) + "\nnot json\n"
    run = program("tools", "run", "--permission-mode", "acceptEdits", stdin=stdin)
    rows = [json.loads(line) for line in run.out.splitlines()]
    assert [row["id"] for row in rows] == ["1", "2", "3", "4", "5", ""]
    assert [row["is_error"] for row in rows] == [False, False, False, True, True, True]
    assert set(rows[0]) == {"id", "is_error", "content", "summary", "duration_ms", "structured"}
    assert rows[0]["structured"] == {"text": 'print("hi")\n', "total_lines": 1, "encoding": "utf-8"}
    assert rows[2]["content"] == "x = 1"
    assert [row["error"]["kind"] for row in rows[3:]] == ["not_found", "invalid_parameters", "invalid_parameters"]


def rows_of(run: Ran) -> list[Any]:
    assert run.code == 0, run.err
    return [json.loads(line) for line in run.out.splitlines()]


def test_a_program_is_given_every_match_and_every_path(program: Program) -> None:
    (program.folder / "many.txt").write_text("".join(f"a match in line {n}\n" for n in range(40_000)))
    folder = program.folder / f"long{'g' * 200}"
    for n in range(10):
        (folder / f"{n}{'n' * 200}").mkdir(parents=True)
        for m in range(250):
            (folder / f"{n}{'n' * 200}" / f"{m}").touch()
    calls = [
        {"name": "grep_search", "input": {"pattern": "match", "limit": 0}},
        {"name": "file_list", "input": {"limit": 0}},
    ]
    found, listed = rows_of(program("tools", "run", stdin="\n".join(map(json.dumps, calls))))
    matches = found["structured"]["matches"]
    assert matches[-1] == {"path": "many.txt", "line": 40_000, "text": "a match in line 39999"}
    assert len(matches) == found["structured"]["total"] == 40_000
    assert len("".join(listed["structured"]["paths"])) > 1_000_000
    assert len(listed["structured"]["paths"]) == listed["structured"]["total"] == 2_500 + 11 + 2


@pytest.mark.parametrize(("ids", "text"), [(["", "", ""], "X"), (["1", "2", "3"], "X"), (["1", "2", "1"], "Y")])
def test_a_line_is_run_unless_it_is_the_same_call_again(program: Program, ids: list[str], text: str) -> None:
    lines = [
        json.dumps({**({"id": id} if id else {}), "name": "file_write", "input": {"path": "q", "content": content}})
        for id, content in zip(ids, "XYX", strict=True)
    ]
    rows = rows_of(program("tools", "run", "--permission-mode", "bypassPermissions", stdin="\n".join(lines)))
    assert [row["id"] for row in rows] == ids
    assert not any(row["is_error"] for row in rows)
    assert (program.folder / "q").read_text() == text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "id", "said"),
    [
        ('{"id": "a", "name": "think", "input": "str"}', "a", "Expected `object`, got `str` - at `$.input`"),
        ('{"id": "b"}', "b", "missing required field `name`"),
        ('{"id": 5, "name": "think"}', "", "Expected `str`, got `int` - at `$.id`"),
        (r'{"id": "c", "name": "think", "input": {"thought": "\ud800"}}', "", "truncated"),
        ('{"id": "d", "name": "think\udcff"}', "", "codec can't decode byte 0xff"),
        ('{"id": "e", "name": "think", "input": {"a": ' + "[" * 100_000, "", "recursion depth"),
        ("[1]", "", "Expected `object`, got `array`"),
        ("file_read a.py", "", "JSON is malformed"),
    ],
)
def test_a_line_that_is_not_a_call_is_answered_under_its_id(program: Program, line: str, id: str, said: str) -> None:
    good = '{"id": "good", "name": "think", "input": {"thought": "x"}}\n'
    wrong, right = rows_of(program("tools", "run", stdin=f"\ufeff{line}\n{good}"))
    assert (wrong["id"], wrong["is_error"], wrong["error"]["kind"]) == (id, True, "invalid_parameters")
    assert said in wrong["error"]["message"]
    assert (right["id"], right["is_error"]) == ("good", False)


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_that_waits_for_calls_and_its_jobs(
    program: Program, sign: signal.Signals, code: int
) -> None:
    job = {"name": "bash", "input": {"command": "exec sleep 60.25", "background": True}}
    with program.start("tools", "run", "--permission-mode", "bypassPermissions", stdin=True) as running:
        running.send(job)
        running.wait_for(lambda line: line["is_error"] is False)
        running.signal(sign)
        ended = running.left()
    assert (ended.code, ended.err) == (code, "")
    assert not any("sleep 60.25" in line for line in command_lines())


def test_an_edit_where_no_lock_can_be_kept_says_which_folder_must_be_writable(program: Program) -> None:
    (program.home / "state").mkdir(parents=True)
    (program.home / "state" / "file_locks").write_text("in the way")
    run = program("tools", "run", "file_write", '{"path": "n", "content": "x"}', "--permission-mode", "acceptEdits")
    error = json.loads(run.out)["error"]
    assert error["kind"] == "resource_error"
    assert f"{program.home / 'state' / 'file_locks'} (" in error["message"]
    assert "AGENTCLI_HOME" in error["message"]
    assert run.err == ""
    assert not (program.folder / "n").exists()


def test_a_call_by_hand_follows_the_permission_mode(program: Program) -> None:
    denied = program("tools", "run", "bash", '{"command": "git push"}')
    assert denied.code == 1
    assert json.loads(denied.out)["error"]["kind"] == "permission_denied"
    assert not (program.folder / "x").exists()
    assert program("tools", "run", "bash", '{"command": "touch x"}', "--permission-mode", "bypassPermissions").code == 0
    assert (program.folder / "x").exists()


@pytest.mark.parametrize(
    ("command", "verdict"), [("ls -la", "allow"), ("git push", "ask"), ("rm -rf /", "block"), ("echo $(curl x)", "ask")]
)
def test_permissions_explain_gives_a_verdict(program: Program, command: str, verdict: str) -> None:
    assert json.loads(program("permissions", "explain", command, "--json").out)["verdict"] == verdict
    assert program("permissions", "explain", command).out.startswith(f"{verdict}: ")


def test_a_part_that_an_ask_rule_matches_is_explained_by_the_rule(program: Program) -> None:
    explain = ("permissions", "explain", "ls && touch x", "--json")
    first = json.loads(program(*explain, AGENTCLI_PERMISSIONS_ASK="Bash(ls:*)").out)["segments"][0]
    assert (first["verdict"], first["reason"]) == ("ask", "the rule bash(ls *) requires approval")


def test_permissions_explain_reads_and_writes_lines(program: Program) -> None:
    run = program("permissions", "explain", "--jsonl", stdin='{"command": "ls"}\n{"command": "git push"}\n')
    rows = [json.loads(line) for line in run.out.splitlines()]
    assert [(row["command"], row["verdict"]) for row in rows] == [("ls", "allow"), ("git push", "ask")]
    assert set(rows[0]) == {"command", "verdict", "rule", "segments", "effects"}


def test_a_line_without_a_command_is_not_allowed_and_the_next_one_is_checked(program: Program) -> None:
    lines = '{"command": "ls"}\ngarbage\n[]\n{}\n{"command": 5}\n{"command": "ls"}\n'
    first, *wrong, last = rows_of(program("permissions", "explain", "--jsonl", stdin=lines))
    assert first == last
    assert first["verdict"] == "allow"
    for row in wrong:
        assert set(row) == {*first, "error"}
        assert (row["verdict"], row["error"][:17]) == ("ask", "Not a valid line:")


def test_explaining_no_command_is_a_usage_error(program: Program) -> None:
    for arguments in ((), ("--json",), (" ",)):
        run = program("permissions", "explain", *arguments)
        assert (run.code, run.out) == (2, "")
        assert "no command" in run.err


def test_the_mode_auto_is_explained_as_a_session_here_would_take_it(program: Program) -> None:
    explained = json.loads(program("permissions", "explain", "touch x", "--permission-mode", "auto", "--json").out)
    run = program("tools", "run", "bash", '{"command": "touch x"}', "--permission-mode", "auto")
    assert explained["verdict"] == ("ask" if json.loads(run.out)["is_error"] else "allow")


def test_models_are_listed_with_windows_and_prices(program: Program) -> None:
    rows = {(row["provider"], row["id"]): row for row in json.loads(program("models", "list", "--json").out)}
    assert rows["anthropic", "claude-sonnet-5-5"]["window"] == 1_000_000
    assert "anthropic/claude-opus-5-5" in program("models", "list").out


def test_the_default_model_follows_the_keys(program: Program) -> None:
    assert program("models", "default", OPENAI_API_KEY="k").out.startswith("openai/")
    assert program("models", "default", ANTHROPIC_API_KEY="k", ANTHROPIC_MODEL="opus").out == "anthropic/opus\n"
    none = program("models", "default")
    assert none.code == 2
    assert "agentcli local install" in none.err


def test_a_models_server_that_is_down_is_reported(program: Program) -> None:
    run = program("models", "check", "ollama/qwen")
    assert run.code == 1
    assert "Could not connect" in run.out


def test_settings_are_shown_and_only_what_differs(program: Program) -> None:
    assert "default" in program("config", "show").out
    assert "max_turns = 7" in program("config", "show", AGENTCLI_LIMITS_MAX_TURNS="7").out
    assert json.loads(program("config", "show", "--json").out)["limits"]["max_turns"] is None
    assert json.loads(program("config", "path", "--json").out)["state"] == str(program.home / "state")


def test_local_status_says_how_to_get_the_weights(program: Program) -> None:
    run = program("local", "status")
    assert run.code == 1
    assert "agentcli local install" in run.out
    found = json.loads(program("local", "status", "--json").out)
    assert (found["weights"], found["servers"]) == (False, [])
    assert program("local", "stop").out == "No server is running.\n"
    assert program("local", "serve").code == 2


@pytest.mark.parametrize("group", ["sessions", "tools", "models", "config", "permissions", "local"])
def test_a_group_without_a_command_shows_its_help(program: Program, group: str) -> None:
    run = program(group)
    assert "Commands" in run.out + run.err
    assert program(group, "--nope").code == 2


def test_commands_run_in_a_container_where_the_settings_want_it(program: Program, tmp_path: Path) -> None:
    """A stand-in for docker runs what comes behind the image's name, and notes what it was told."""
    bin = tmp_path / "bin"
    bin.mkdir()
    docker = bin / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/told\ncase "$1" in rm|version) exit 0;; esac\n'
        'while [ "$1" != img ]; do shift; done\nshift\nexec "$@"\n'
    )
    docker.chmod(0o755)
    settings = {"AGENTCLI_SANDBOX_KIND": "docker", "PATH": f"{bin}:{os.environ['PATH']}"}
    wanted = program("tools", "run", "bash", '{"command": "echo hi"}', **settings)
    assert wanted.code == 2
    assert "sandbox.docker_image" in wanted.err
    ran = program("tools", "run", "bash", '{"command": "echo hi"}', **settings, AGENTCLI_SANDBOX_DOCKER_IMAGE="img")
    assert json.loads(ran.out)["content"] == "hi"
    asked, started, removed = (tmp_path / "told").read_text().splitlines()
    assert asked == "version"
    assert "--network=none" in started
    assert removed.startswith("rm --force")
