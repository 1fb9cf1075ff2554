"""The agent for Harbor, without Harbor: the command for a container, and what is read from its log."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentcli.cli.options import parser
from agentcli.errors import UsageError
from agentcli.evals.harbor import _fill_context, _run, agent_command, context_fields, read_log

USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 300}
INIT = {"type": "system", "subtype": "init", "session_id": "s"}
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "Done.\u2028",
    "session_id": "s",
    "num_turns": 2,
    "total_cost_usd": 0.25,
    "usage": USAGE,
    "terminal_reason": "end_turn",
}


def parsed(instruction: str, model: str | None = "scripted/a b.jsonl", flags: str = "") -> argparse.Namespace:
    program, *arguments = shlex.split(agent_command(instruction, model, flags))
    assert program == "agentcli"
    return parser({}).parse_args(arguments)


def assistant(usage: dict[str, Any]) -> dict[str, Any]:
    return {"type": "assistant", "message": {"role": "assistant", "content": [], "usage": usage}}


def lines(*objects: dict[str, Any]) -> str:
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in objects)


@pytest.mark.skipif(find_spec("harbor") is not None, reason="Harbor is installed")
def test_without_harbor_the_agent_says_how_to_install_it() -> None:
    with pytest.raises(UsageError, match="pip install 'harbor>="):
        from agentcli.evals.harbor import AgentcliAgent  # noqa: F401


def test_only_the_agent_is_made_on_demand() -> None:
    with pytest.raises(ImportError, match="Another"):
        from agentcli.evals.harbor import Another  # noqa: F401


def test_the_command_gives_the_whole_instruction_and_asks_for_nothing() -> None:
    options = parsed('--mend it\'s "broken"\n$HOME', flags="--max-turns 7 --deny web_fetch --deny web_search")
    assert options.prompt == '--mend it\'s "broken"\n$HOME'
    assert options.model == "scripted/a b.jsonl"
    assert (options.print, options.output_format) == (True, "stream-json")
    assert (options.permission_mode, options.sandbox) == ("bypassPermissions", "danger-full-access")
    assert (options.max_turns, options.deny) == (7, ["web_fetch", "web_search"])


def test_without_a_model_the_program_chooses() -> None:
    assert parsed("mend it", model=None).model is None


@pytest.mark.parametrize("instruction", ["/app is broken", "\n /usage grows"])
def test_an_instruction_that_begins_with_a_slash_is_not_a_command(instruction: str) -> None:
    assert parsed(instruction).prompt == f"Task: {instruction}"


def test_the_result_fills_the_context() -> None:
    log = read_log(lines(INIT, assistant(USAGE), RESULT))
    assert log[-1] == RESULT
    assert context_fields(log) == {
        "n_input_tokens": 350,
        "n_cache_tokens": 300,
        "n_output_tokens": 5,
        "cost_usd": 0.25,
        "metadata": {
            name: RESULT[name] for name in RESULT if name not in {"type", "result", "total_cost_usd", "usage"}
        },
    }


def test_an_agent_that_was_killed_is_counted_by_its_replies() -> None:
    log = read_log(lines(INIT, assistant(USAGE), assistant(USAGE)) + '{"type":"assis')
    fields = context_fields(log)
    assert (fields["n_input_tokens"], fields["n_output_tokens"], fields["cost_usd"]) == (700, 10, None)


def test_an_agent_that_never_began_leaves_the_context_alone() -> None:
    assert context_fields(read_log("")) == {}
    assert context_fields(read_log("agentcli: not found\n[]\n")) == {}


class FakeAgent:
    """Has what Harbor's base class gives, and runs commands here instead of in a container."""

    def __init__(self, folder: Path, reply: dict[str, Any], flags: str = "") -> None:
        self.folder, self.flags = folder, flags
        self.logs_dir = self.environment_logs_dir = folder
        (folder / "model.jsonl").write_text(f"{json.dumps(reply)}\n" * 2)
        self.model_name = f"scripted/{folder}/model.jsonl"
        program = folder / ".local/bin/agentcli"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m agentcli "$@"\n')
        program.chmod(0o755)

    def render_instruction(self, instruction: str) -> str:
        return instruction

    def build_cli_flags(self) -> str:
        return self.flags

    async def exec_as_agent(self, environment: object, command: str, env: dict[str, str]) -> None:
        home = {"HOME": str(self.folder), "AGENTCLI_HOME": str(self.folder), "PATH": "/usr/bin:/bin"}
        shell = ["sh", "-c", command]
        done = subprocess.run(shell, cwd=self.folder, env=home | env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout)

    def try_task(self) -> SimpleNamespace:
        context = SimpleNamespace()
        try:
            asyncio.run(_run(self, "mend it", object(), context))
        finally:
            _fill_context(self, context)
        return context


@pytest.mark.slow
def test_a_run_at_its_turn_limit_ends_like_any_other(tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "echo mended > it"}}
    context = FakeAgent(tmp_path, {"tool_calls": [call], "usage": USAGE}, "--max-turns 2").try_task()
    assert (tmp_path / "it").read_text() == "mended\n"
    assert (context.n_input_tokens, context.metadata["subtype"]) == (700, "error_max_turns")


def test_a_failed_run_shows_harbor_the_cause(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='"terminal_reason":"AuthError"'):
        FakeAgent(tmp_path, {"error": {"kind": "auth"}}).try_task()


def test_a_program_that_does_not_start_leaves_the_context_alone(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="--sideways"):
        FakeAgent(tmp_path, {"text": "Done."}, "--sideways").try_task()
