"""The subcommands, run as people and scripts run them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # each test starts the program

TURN = """\
{"text": "Let me look.", "tool_calls": [{"name": "file_read", "input": {"path": "a.py"}}]}
{"text": "It prints hi."}
"""


class Program:
    """agentcli in a directory and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "project"
        self.home = folder / "home"
        self.cwd.mkdir()
        (self.cwd / "a.py").write_text('print("hi")\n')

    def __call__(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        keys = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "DEEPSEEK_API_KEY", "OLLAMA_HOST")
        kept = {name: value for name, value in os.environ.items() if name not in keys}
        return subprocess.run(
            [sys.executable, "-m", "agentcli", *arguments],
            cwd=self.cwd,
            env={**kept, "AGENTCLI_HOME": str(self.home), "OLLAMA_HOST": "127.0.0.1:9", **env},
            input=stdin,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=60,
            check=False,
        )

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """It runs, its stdin open."""
        return subprocess.Popen(
            [sys.executable, "-m", "agentcli", *arguments],
            cwd=self.cwd,
            env={**os.environ, "AGENTCLI_HOME": str(self.home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def session(self) -> str:
        """Run a short session; gives its id."""
        (self.cwd / "turn.jsonl").write_text(TURN)
        run = self("-p", "what is a.py?", "-m", "scripted/turn.jsonl", "--output-format", "json", "--name", "first")
        return str(json.loads(run.stdout)["session_id"])


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_the_tour_needs_no_key_and_says_that_it_is_scripted(program: Program) -> None:
    run = program("demo")
    assert run.returncode == 0, run.stderr
    assert "SCRIPTED" in run.stdout
    assert "+     return net + net * TAX" in run.stdout
    assert "test passes now" in run.stdout


def test_sessions_are_listed_newest_first_with_name_and_title(program: Program) -> None:
    id = program.session()
    rows = json.loads(program("sessions", "list", "--json").stdout)
    assert [(row["id"], row["name"], row["title"]) for row in rows] == [(id, "first", "what is a.py?")]
    assert id in program("sessions", "list").stdout


def test_sessions_of_other_directories_are_listed_only_on_request(program: Program, tmp_path: Path) -> None:
    id = program.session()
    program.cwd = tmp_path / "elsewhere"
    program.cwd.mkdir()
    assert "No sessions" in program("sessions", "list").stdout
    assert id in program("sessions", "list", "--all").stdout


def test_a_session_is_shown_as_the_next_request_would_send_it(program: Program) -> None:
    id = program.session()
    shown = json.loads(program("sessions", "show", id[:13], "--json").stdout)
    assert shown["session_id"] == id
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant", "user", "assistant"]
    assert shown["messages"][2]["content"][0]["type"] == "tool_result"
    kinds = {entry["body"]["kind"] for entry in shown["entries"]}
    assert kinds == {"user", "assistant", "tool_result", "calls_started"}
    assert "It prints hi." in program("sessions", "show", "first").stdout


def test_an_unknown_session_is_an_error_that_says_what_to_do(program: Program) -> None:
    run = program("sessions", "show", "0000")
    assert run.returncode == 1
    assert "agentcli sessions list" in run.stderr


def test_tools_are_listed_with_source_and_schema(program: Program) -> None:
    tools = {tool["name"]: tool for tool in json.loads(program("tools", "list", "--json").stdout)}
    assert set(tools) == {
        "file_read",
        "file_write",
        "file_edit",
        "file_list",
        "grep_search",
        "bash",
        "jobs",
        "think",
        "todo",
    } | {"read_more", "web_fetch", "web_search"}
    assert tools["bash"]["source"] == "builtin"
    assert tools["file_read"]["input_schema"]["required"] == ["path"]
    assert "grep_search" in program("tools", "list").stdout


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
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [row["id"] for row in rows] == ["1", "2", "3", "4", "5", ""]
    assert [row["is_error"] for row in rows] == [False, False, False, True, True, True]
    assert set(rows[0]) == {"id", "is_error", "content", "summary", "duration_ms", "structured"}
    assert rows[0]["structured"] == {"text": 'print("hi")\n', "total_lines": 1, "encoding": "utf-8"}
    assert rows[2]["content"] == "x = 1"
    assert [row["error"]["kind"] for row in rows[3:]] == ["not_found", "invalid_parameters", "invalid_parameters"]


def rows_of(run: subprocess.CompletedProcess[str]) -> list[Any]:
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_a_program_is_given_every_match_and_every_path(program: Program) -> None:
    (program.cwd / "many.txt").write_text("".join(f"a match in line {n}\n" for n in range(40_000)))
    folder = program.cwd / f"long{'g' * 200}"
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
    assert (program.cwd / "q").read_text() == text


@pytest.mark.parametrize(
    ("line", "id", "said"),
    [
        ('{"id": "a", "name": "think", "input": "str"}', "a", "input: expected object, got str"),
        ('{"id": "b"}', "b", "missing required field name"),
        ('{"id": 5, "name": "think"}', "", "id: expected str, got int"),
        (r'{"id": "c", "name": "think", "input": {"thought": "\ud800"}}', "c", "half of a surrogate pair"),
        (r'{"id": "\ud800", "name": 1}', "", "half of a surrogate pair"),
        ('{"id": "d", "name": "think\udcff"}', "d", "not encoded as UTF-8"),
        ('{"id": "e", "name": "think", "input": {"a": ' + "[" * 100_000, "", "nested too deeply"),
        ("[1]", "", "expected object, got array"),
        ("file_read a.py", "", "it is no JSON"),
    ],
)
def test_a_line_that_is_no_call_is_answered_under_its_id(program: Program, line: str, id: str, said: str) -> None:
    good = '{"id": "good", "name": "think", "input": {"thought": "x"}}\n'
    wrong, right = rows_of(program("tools", "run", stdin=f"\ufeff{line}\n{good}"))
    assert (wrong["id"], wrong["is_error"], wrong["error"]["kind"]) == (id, True, "invalid_parameters")
    assert said in wrong["error"]["message"]
    assert (right["id"], right["is_error"]) == ("good", False)


def test_a_byte_order_mark_ahead_of_the_calls_is_passed_over(program: Program) -> None:
    (row,) = rows_of(program("tools", "run", stdin='\ufeff{"id": "1", "name": "think", "input": {"thought": "x"}}'))
    assert (row["id"], row["is_error"]) == ("1", False)


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_that_waits_for_calls_and_its_jobs(
    program: Program, sign: signal.Signals, code: int
) -> None:
    with program.started("tools", "run", "--permission-mode", "bypassPermissions") as run:
        assert run.stdin is not None
        assert run.stdout is not None
        job = {"name": "bash", "input": {"command": "exec sleep 60", "background": True}}
        run.stdin.write(json.dumps(job).encode() + b"\n")
        run.stdin.flush()
        assert json.loads(run.stdout.readline())["is_error"] is False
        run.send_signal(sign)
        assert run.wait(5) == code
        assert run.stderr is not None
        assert run.stderr.read() == b""
    assert "sleep 60" not in jobs_in(program.cwd)


def jobs_in(folder: Path) -> str:
    """The commands that run in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return "\n".join(found)


def test_an_edit_where_no_lock_can_be_kept_says_which_folder_must_be_writable(program: Program) -> None:
    (program.home / "state").mkdir(parents=True)
    (program.home / "state" / "file_locks").write_text("in the way")
    run = program("tools", "run", "file_write", '{"path": "n", "content": "x"}', "--permission-mode", "acceptEdits")
    error = json.loads(run.stdout)["error"]
    assert error["kind"] == "resource_error"
    assert f"{program.home / 'state' / 'file_locks'} (" in error["message"]
    assert "AGENTCLI_HOME" in error["message"]
    assert run.stderr == ""
    assert not (program.cwd / "n").exists()


def test_a_call_by_hand_is_judged_by_the_permission_mode(program: Program) -> None:
    denied = program("tools", "run", "bash", '{"command": "touch x"}')
    assert denied.returncode == 1
    assert json.loads(denied.stdout)["error"]["kind"] == "permission_denied"
    assert not (program.cwd / "x").exists()
    assert (
        program("tools", "run", "bash", '{"command": "touch x"}', "--permission-mode", "bypassPermissions").returncode
        == 0
    )
    assert (program.cwd / "x").exists()


@pytest.mark.parametrize(
    ("command", "verdict"), [("ls -la", "allow"), ("git push", "ask"), ("rm -rf /", "block"), ("echo $(make)", "ask")]
)
def test_permissions_explain_gives_a_verdict(program: Program, command: str, verdict: str) -> None:
    assert json.loads(program("permissions", "explain", command, "--json").stdout)["verdict"] == verdict
    assert program("permissions", "explain", command).stdout.startswith(f"{verdict}: ")


def test_permissions_explain_reads_and_writes_lines(program: Program) -> None:
    run = program("permissions", "explain", "--jsonl", stdin='{"command": "ls"}\n{"command": "git push"}\n')
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(row["command"], row["verdict"]) for row in rows] == [("ls", "allow"), ("git push", "ask")]
    assert set(rows[0]) == {"command", "verdict", "rule", "segments", "effects"}


def test_a_line_without_a_command_is_not_allowed_and_the_next_one_is_judged(program: Program) -> None:
    lines = '\ufeff{"command": "ls"}\ngarbage\n[]\n{}\n{"command": 5}\n{"command": "ls"}\n'
    first, *wrong, last = rows_of(program("permissions", "explain", "--jsonl", stdin=lines))
    assert first == last
    assert first["verdict"] == "allow"
    for row in wrong:
        assert set(row) == {*first, "error"}
        assert (row["verdict"], row["error"][:18]) == ("ask", 'Not a line like {"')


def test_explaining_no_command_is_a_usage_error(program: Program) -> None:
    for arguments in ((), ("--json",), (" ",)):
        run = program("permissions", "explain", *arguments)
        assert (run.returncode, run.stdout) == (2, "")
        assert "no command" in run.stderr


def test_the_mode_auto_is_explained_as_a_session_here_would_take_it(program: Program) -> None:
    explained = json.loads(program("permissions", "explain", "touch x", "--permission-mode", "auto", "--json").stdout)
    run = program("tools", "run", "bash", '{"command": "touch x"}', "--permission-mode", "auto")
    assert explained["verdict"] == ("ask" if json.loads(run.stdout)["is_error"] else "allow")


def test_models_are_listed_with_windows_and_prices(program: Program) -> None:
    rows = {(row["provider"], row["id"]): row for row in json.loads(program("models", "list", "--json").stdout)}
    assert rows["anthropic", "claude-sonnet-5-5"]["window"] == 1_000_000
    assert "anthropic/claude-opus-5-5" in program("models", "list").stdout


def test_the_default_model_follows_the_keys(program: Program) -> None:
    assert program("models", "default", OPENAI_API_KEY="k").stdout.startswith("openai/")
    assert program("models", "default", ANTHROPIC_API_KEY="k", ANTHROPIC_MODEL="opus").stdout == "anthropic/opus\n"
    none = program("models", "default")
    assert none.returncode == 2
    assert "agentcli local install" in none.stdout


def test_a_models_server_that_is_down_is_told(program: Program) -> None:
    run = program("models", "check", "ollama/qwen")
    assert run.returncode == 1
    assert "Could not connect" in run.stdout


def test_settings_are_shown_and_only_what_differs(program: Program) -> None:
    assert "default" in program("config", "show").stdout
    assert "max_turns = 7" in program("config", "show", AGENTCLI_LIMITS_MAX_TURNS="7").stdout
    assert json.loads(program("config", "show", "--json").stdout)["limits"]["max_turns"] is None
    assert json.loads(program("config", "path", "--json").stdout)["state"] == str(program.home / "state")


def test_a_projects_settings_count_once_it_is_trusted(program: Program) -> None:
    (program.cwd / ".agentcli").mkdir()
    (program.cwd / ".agentcli" / "config.toml").write_text("[limits]\nmax_turns = 3\n")
    assert "max_turns" not in program("config", "show").stdout.split("#", 2)[-1].partition("\n")[2]
    assert "Trusted" in program("config", "trust").stdout
    assert "max_turns = 3" in program("config", "show").stdout


def test_doctor_names_what_is_missing(program: Program) -> None:
    run = program("doctor")
    assert run.returncode == 1
    assert "✗ model" in run.stdout
    assert "✓ ripgrep" in run.stdout
    assert program("doctor", ANTHROPIC_API_KEY="k").returncode == 0


def test_local_status_says_how_to_get_the_weights(program: Program) -> None:
    run = program("local", "status")
    assert run.returncode == 1
    assert "agentcli local install" in run.stdout
    assert json.loads(program("local", "status", "--json").stdout)["weights"] is False


def test_serving_weights_that_are_missing_is_an_error(program: Program) -> None:
    assert json.loads(program("local", "status", "--json").stdout)["servers"] == []
    assert program("local", "stop").stdout == "No server runs.\n"
    assert program("local", "serve").returncode == 2


@pytest.mark.parametrize("group", ["sessions", "tools", "models", "config", "permissions", "local"])
def test_a_group_without_a_command_shows_its_help(program: Program, group: str) -> None:
    run = program(group)
    assert "Commands" in run.stdout + run.stderr
    assert program(group, "--nope").returncode == 2


def test_commands_run_in_a_container_where_the_settings_want_it(program: Program, tmp_path: Path) -> None:
    """A stand-in for docker runs what comes behind the image's name, and notes what it was told."""
    bin = tmp_path / "bin"
    bin.mkdir()
    docker = bin / "docker"
    docker.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/told\n[ "$1" = rm ] && exit 0\n'
        'while [ "$1" != img ]; do shift; done\nshift\nexec "$@"\n'
    )
    docker.chmod(0o755)
    settings = {"AGENTCLI_SANDBOX_KIND": "docker", "PATH": f"{bin}:{os.environ['PATH']}"}
    wanted = program("tools", "run", "bash", '{"command": "echo hi"}', **settings)
    assert wanted.returncode == 2
    assert "sandbox.docker_image" in wanted.stderr
    ran = program("tools", "run", "bash", '{"command": "echo hi"}', **settings, AGENTCLI_SANDBOX_DOCKER_IMAGE="img")
    assert json.loads(ran.stdout)["content"] == "hi"
    started, removed = (tmp_path / "told").read_text().splitlines()
    assert "--network=none" in started
    assert removed.startswith("rm --force")
