"""The program's log: its forms, its outputs, and files that are put aside when they are full."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, call
from tests.app.terminal import Open

KEY = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cF3hJ6"

LOGS = """
import logging, sys, os
from pathlib import Path
from agentcli.cli.output import set_up_logging
from agentcli.settings.load import load_config
from agentcli.settings.files import find_paths
set_up_logging(load_config(Path.cwd()))
"""
MANY = (
    LOGS
    + """
for number in range(200):
    logging.getLogger("many").warning("%s of %s", number, sys.argv[1])
"""
)
BUG = (
    LOGS
    + """
import asyncio
from agentcli import Agent, AgentOptions
class Broken:
    name, model = "broken", "m"
    async def stream(self, request):
        raise RuntimeError("bug with " + sys.argv[1])
        yield
    async def aclose(self): pass
async def main():
    async with Agent(options=AgentOptions(provider=Broken())) as agent:
        session = await agent.session()
        print(session.id)
        try: await agent.run("go")
        except Exception: pass
asyncio.run(main())
"""
)


def started(place: Place, program: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
    given = place.environment | {f"AGENTCLI_OBSERVABILITY_{name}".upper(): value for name, value in env.items()}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(
        command, cwd=place.folder, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def logs(place: Place) -> list[Path]:
    return sorted((place.home / "state/logs").glob("*"))


def records(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.home / "state/logs/agentcli.log").read_text().splitlines()]


def test_a_json_log_has_one_object_for_each_record(place: Place) -> None:
    process = started(place, BUG, KEY, log_format="json")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    (found,) = [record for record in records(place) if record["logger"] == "agentcli.agent.session"]
    assert found["level"] == "error"
    assert found["session_id"] == out.strip()
    assert found["message"].startswith("the turn failed\nTraceback")
    assert "bug with [masked: " in found["message"]
    assert KEY not in found["message"]
    assert abs((datetime.now().astimezone() - datetime.fromisoformat(found["time"])).total_seconds()) < 60


def test_a_text_log_is_as_it_was(place: Place) -> None:
    process = started(place, BUG, KEY)
    assert process.wait(60) == 0
    text = logs(place)[0].read_text()
    assert " ERROR agentcli.agent.session: the turn failed\nTraceback" in text
    assert KEY not in text


def test_info_tells_what_sessions_do_and_not_what_is_reported(place: Place) -> None:
    said = "say-nothing-of-this"
    agent = {"tool_calls": [call("create_subagent", task=said)]}
    bash = {"tool_calls": [call("bash", command=f"echo {said}; exit 3")]}
    replies = (agent, {"text": said}, bash, {"text": f"Done, {said}."})
    env = {"AGENTCLI_OBSERVABILITY_LOG_LEVEL": "info", "AGENTCLI_OBSERVABILITY_LOG_FORMAT": "json"}
    ran = place.run("-m", place.script(*replies), "-p", said, "--permission-mode", "bypassPermissions", env=env)
    assert ran.code == 0, ran.err
    found = [record for record in records(place) if record["logger"] == "agentcli.agent.activity_log"]
    assert {record["level"] for record in found} == {"info"}
    told = [record["message"] for record in found]
    for what in ("a turn begins", " answered: ", "bash: failed", "subagent general-1 ", "create_subagent: done"):
        assert any(what in text for text in told), (what, "\n".join(told))
    assert "the turn ended: end_turn, 3 requests" in told[-1]
    assert sum("answered:" in text for text in told) == 4, "what a subagent does is told once"
    assert said not in str(found)


@pytest.mark.parametrize("outputs", ["stderr", "file,stderr"])
def test_the_log_goes_to_stderr_where_that_is_wanted(place: Place, outputs: str) -> None:
    env = {"AGENTCLI_OBSERVABILITY_LOG_OUTPUTS": outputs, "AGENTCLI_OBSERVABILITY_LOG_LEVEL": "debug"}
    ran = place.run("-m", place.script({"text": "Hi."}), "-p", "go", env=env)
    assert ran.out == "Hi.\n"
    assert " DEBUG asyncio: " in ran.err
    assert bool(logs(place)) == ("file" in outputs)


def test_a_screen_is_not_garbled_by_it(open_terminal: Open) -> None:
    terminal = open_terminal(
        [{"text": "Hello."}],
        AGENTCLI_OBSERVABILITY_LOG_OUTPUTS="stderr",
        AGENTCLI_OBSERVABILITY_LOG_LEVEL="debug",
    )
    terminal.type("hi\r")
    terminal.see("Hello.")
    assert "DEBUG" not in terminal.transcript()


def test_full_files_are_put_aside_and_no_line_is_lost(place: Place) -> None:
    assert started(place, MANY, "x", log_max_mb="0.001", log_keep="100").wait(60) == 0
    found = logs(place)
    assert 8 <= len(found) <= 30
    assert {stat.S_IMODE(file.stat().st_mode) for file in found} == {0o600}
    lines = [line.partition("many: ")[2] for file in found for line in file.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{number} of x" for number in range(200))
    assert max(file.stat().st_size for file in found) < 1_500


def test_only_as_many_are_kept_as_wanted(place: Place) -> None:
    assert started(place, MANY, "x", log_max_mb="0.002", log_keep="2").wait(60) == 0
    assert [file.name for file in logs(place)] == ["agentcli.log", "agentcli.log.1", "agentcli.log.2"]
    assert logs(place)[0].read_text().splitlines()[-1].endswith("199 of x")
    assert "199 of x" not in logs(place)[1].read_text()


def test_a_log_that_cannot_be_written_ends_nothing(place: Place) -> None:
    (place.home / "state").mkdir(parents=True)
    (place.home / "state/logs").write_text("in the way")
    model = place.script({"tool_calls": [call("file_list")]}, {"text": "Hi."})
    ran = place.run("-m", model, "-p", "go", env={"AGENTCLI_OBSERVABILITY_LOG_LEVEL": "debug"})
    assert (ran.out, ran.err) == ("Hi.\n", "")
