"""Trying a command first: the person sees what it would change, and keeps all, some or nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcli.agent.events import ApprovalRequested, Approve, Interrupt, ToolFinished
from agentcli.infra.sandbox.backends.bubblewrap import Bubblewrap
from agentcli.infra.sandbox.backends.choosing import choose_confinement
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.session_confinement import CommandLimits
from tests.unit.agent.stage import Stage, call, on_stage

END = {"text": "The end."}
COMMAND = "sed -i s/two/TWO/ x.txt; echo new > y.txt; rm z.txt; echo done"

Folder = Path


@asynccontextmanager
async def trying(folder: Path, **how: Any) -> AsyncIterator[Stage]:
    """A session whose model wants to run COMMAND, confined by bubblewrap."""
    (folder / "tmp").mkdir()
    confinement = choose_confinement(tmp=folder / "tmp")
    if not isinstance(confinement, Bubblewrap):
        pytest.skip(f"commands are tried in bubblewrap: {confinement.why}")
    reply = {"tool_calls": [call("bash", id="c", **{"command": COMMAND, **how})]}
    async with on_stage(folder, [reply, END], can_ask=True) as stage:
        limits = CommandLimits("workspace-write", home=folder / "home", tries=folder / "tries")
        sandbox = LocalSandbox(
            [stage.workspace],
            environment={"PATH": "/usr/bin:/bin"},
            job_folder=folder / "jobs",
            limits=limits,
            choose=lambda: confinement,
        )
        stage.session.runtime.calls.workspace.sandbox = sandbox
        for name, text in (("x.txt", "one\ntwo\n"), ("z.txt", "z\n")):
            (stage.workspace / name).write_text(text)
        yield stage


def files(stage: Stage) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(stage.workspace.iterdir())}


BEFORE = {"x.txt": "one\ntwo\n", "z.txt": "z\n"}
AFTER = {"x.txt": "one\nTWO\n", "y.txt": "new\n"}


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ({"allowed": True}, AFTER),
        ({"allowed": False}, BEFORE),
        ({"allowed": True, "hunks": ()}, BEFORE),
        ({"allowed": True, "hunks": (0,)}, {**BEFORE, "x.txt": "one\nTWO\n"}),
    ],
)
async def test_what_the_person_keeps_is_all_that_stays(
    tmp_path: Folder, answer: dict[str, Any], left: dict[str, str]
) -> None:
    async with trying(tmp_path) as stage:
        stage.say("Go")
        first = await stage.heard(ApprovalRequested)
        assert first.can_try
        stage.submit(Approve("c", True, "try"))
        second = await stage.heard(ApprovalRequested, 2)
        assert files(stage) == BEFORE
        assert "exit code 0" in second.reason
        names = ["x.txt" in hunk for hunk in second.hunks]
        assert sum(names) == 1
        if answer.get("hunks") == (0,):
            answer = {**answer, "hunks": (names.index(True),)}
        stage.submit(Approve("c", **answer))
        await stage.ended()
        assert files(stage) == left
    content = str(stage.results["c"].content)
    assert content.startswith("done\n[The user tried it and ")
    assert stage.results["c"].is_error == (left == BEFORE)


async def test_an_interrupt_while_it_asks_what_to_keep_drops_everything(tmp_path: Folder) -> None:
    async with trying(tmp_path) as stage:
        stage.say("Go")
        await stage.heard(ApprovalRequested)
        stage.submit(Approve("c", True, "try"))
        await stage.heard(ApprovalRequested, 2)
        stage.submit(Interrupt())
        await stage.ended()
        assert files(stage) == BEFORE
        assert not [path for path in (tmp_path / "tries").iterdir() if path.is_dir() and any(path.iterdir())]


async def test_a_command_that_changes_nothing_asks_no_second_time(tmp_path: Folder) -> None:
    async with trying(tmp_path, command="make -v; exit 3") as stage:
        stage.say("Go")
        await stage.heard(ApprovalRequested)
        stage.submit(Approve("c", True, "try"))
        await stage.ended()
        assert stage.count(ApprovalRequested) == 1
    assert "changed no file" in str(stage.results["c"].content)
    assert "[exit code 3]" in str(stage.results["c"].content)


@pytest.mark.parametrize("how", [{"background": True}, {"unconfined": True}])
async def test_what_cannot_be_tried_is_not_offered(tmp_path: Folder, how: dict[str, Any]) -> None:
    async with trying(tmp_path, **how) as stage:
        stage.say("Go")
        assert not (await stage.heard(ApprovalRequested)).can_try
        stage.submit(Approve("c", False))
        await stage.ended()
    assert stage.of(ToolFinished)[0].error_kind == "permission_denied"
