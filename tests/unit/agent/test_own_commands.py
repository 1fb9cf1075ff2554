"""Commands the person types, and commands sent to the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agentcli.agent.events import Done, OutputDelta, QuestionEvent, TextDelta, ToolFinished, ToolStarted
from agentcli.agent.ops import Approve, Background, Interrupt, RunCommand
from agentcli.conversation.entries import ContextNote
from agentcli.errors import ToolError
from tests.unit.agent.stage import Stage, call, on_stage

Folder = Path
END = {"text": "The end."}
SLOW = "echo begun; sleep 0.3; echo more"


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():
            await asyncio.sleep(0.01)


def notes(stage: Stage) -> list[str]:
    return [entry.body.text for entry in stage.entries if isinstance(entry.body, ContextNote)]


async def test_a_command_runs_at_once_unasked_and_is_reported_with_the_next_prompt(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END], can_ask=True) as stage:
        stage.submit(RunCommand("touch made; echo done"))
        finished = await stage.heard(ToolFinished)
        await stage.session.idle()
        assert (stage.workspace / "made").exists()
        assert stage.count(QuestionEvent) == 0
        (started,) = stage.of(ToolStarted)
        assert (started.name, started.input["command"]) == ("bash", "touch made; echo done")
        assert started.id == finished.id == stage.of(OutputDelta)[0].id
        assert finished.result.content == "done"
        assert not stage.provider.requests
        await stage.ask("What did I do?")
        (message,) = stage.provider.requests[0].messages
    assert message.text == (
        "<bash-input>touch made; echo done</bash-input>\n<bash-output>done</bash-output>What did I do?"
    )
    assert stage.prompts() == ["What did I do?"]


async def test_a_command_that_is_not_for_the_model_is_noted_and_not_reported(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END]) as stage:
        stage.submit(RunCommand("echo secret", to_model=False))
        await stage.heard(ToolFinished)
        await stage.session.idle()
        await stage.ask("Go")
    assert "secret" not in str(stage.provider.requests[0].messages)
    assert notes(stage) == ["<bash-input>echo secret</bash-input>\n<bash-output>secret</bash-output>"]


@pytest.mark.slow
async def test_a_command_runs_while_a_turn_does_and_goes_with_its_next_request(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("bash", command="until [ -e made ]; do sleep 0.02; done; sleep 1", id="c")]}, END]
    async with on_stage(tmp_path, replies, mode="bypassPermissions") as stage:
        stage.say("Go")
        await stage.heard(ToolStarted)
        stage.submit(RunCommand("touch made; echo mine"))
        await stage.ended()
        last = stage.provider.requests[1].messages[-1]
        assert "<bash-output>mine</bash-output>" in last.text
        assert last.content[0].tool_use_id == "c"  # type: ignore[union-attr]
        assert stage.is_valid


async def test_a_failing_command_is_reported_as_it_failed(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END]) as stage:
        stage.submit(RunCommand("ls nowhere; exit 3"))
        finished = await stage.heard(ToolFinished)
        assert finished.result.is_error
        assert "[exit code 3]" in str(finished.result.content)
        stage.submit(RunCommand("  "))
        assert "empty" in str((await stage.heard(ToolFinished, 2)).result.content)


async def test_an_interrupt_ends_a_command_and_keeps_its_output(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END]) as stage:
        stage.submit(RunCommand("echo begun; sleep 30"))
        await stage.heard(OutputDelta)
        stage.submit(Interrupt())
        finished = await stage.heard(ToolFinished)
        said = str(finished.result.content)  # the shell may have had time to say what ended its child
        assert said.startswith("begun\n")
        assert said.endswith("\n[interrupted by the user; it may have partially run]")
        await stage.ask("Go")
        assert "begun" in stage.provider.requests[0].messages[0].text


async def test_the_folder_a_command_ends_in_is_where_the_model_continues(tmp_path: Folder) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    async with on_stage(tmp_path, [{"tool_calls": [call("bash", command="pwd", id="c")]}, END]) as stage:
        stage.submit(RunCommand("cd sub"))
        await stage.heard(ToolFinished)
        await stage.ask("Go")
        assert str(stage.results["c"].content).endswith("/work/sub")


async def test_closing_ends_a_command(tmp_path: Folder) -> None:
    async with on_stage(tmp_path) as stage:
        stage.submit(RunCommand("echo begun; sleep 30", to_model=False))
        await stage.heard(OutputDelta)
        await stage.session.close()
        assert "interrupted by the user" in notes(stage)[0]


async def test_a_command_that_ended_too_late_for_a_turn_is_stored_anyway(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": "One two three", "chunk": 4, "delay_ms": 30}]) as stage:
        stage.say("Go")
        await stage.heard(TextDelta)
        stage.submit(RunCommand("echo mine"))
        await stage.heard(ToolFinished)
        await stage.ended()
        await stage.session.close()
        assert any("<bash-output>mine" in text for text in stage.reminders())


# To the background.


@pytest.mark.slow
async def test_a_running_call_continues_in_the_background_and_the_turn_with_it(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("bash", command=SLOW, id="c")]}, {**END, "delay_ms": 500}]
    async with on_stage(tmp_path, replies, mode="bypassPermissions") as stage:
        stage.say("Go")
        await stage.heard(OutputDelta)
        stage.submit(Background())
        finished = await stage.heard(ToolFinished)
        sandbox = stage.session.runtime.calls.workspace.sandbox
        (job,) = sandbox.jobs.list()
        assert (job.id, job.command, job.is_running) == ("job_1", SLOW, True)
        said = str(finished.result.content)
        assert said.startswith("The person sent this to the background: it continues as job job_1 (process group ")
        assert said.endswith(f"kill -- -{job.pid}\nOutput so far:\nbegun\n")
        assert finished.structured["output_file"] == str(job.output_file)
        assert not finished.result.is_error
        await until(lambda: not sandbox.jobs.list()[0].is_running)
        assert job.output_file.read_text() == "begun\nmore\n"
        done = await stage.ended()
        assert isinstance(done, Done)


async def test_the_person_s_own_command_goes_to_the_background_too(tmp_path: Folder) -> None:
    async with on_stage(tmp_path) as stage:
        stage.submit(RunCommand("echo begun; sleep 30"))
        await stage.heard(OutputDelta)
        stage.submit(Background())
        await stage.heard(ToolFinished)
        sandbox = stage.session.runtime.calls.workspace.sandbox
        assert sandbox.jobs.list()[0].is_running
        await sandbox.jobs.stop("job_1")
        assert not sandbox.jobs.list()[0].is_running
        with pytest.raises(ToolError, match="no job 'job_2'; there is job_1"):
            await sandbox.jobs.stop("job_2")


async def test_a_call_that_begins_later_stays_in_the_foreground(tmp_path: Folder) -> None:
    calls = [call("bash", command="echo x > x", id="a")]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], can_ask=True) as stage:
        stage.say("Go")
        await stage.heard(QuestionEvent)
        stage.submit(Background())
        stage.submit(Approve("a", True))
        await stage.ended()
        assert not stage.session.runtime.calls.workspace.sandbox.jobs.list()


async def test_sending_to_the_background_leaves_a_turn_that_runs_no_command_alone(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": "One two three", "chunk": 4, "delay_ms": 10}]) as stage:
        stage.say("Go")
        await stage.heard(TextDelta)
        stage.submit(Background())
        done = await stage.ended()
    assert done.text == "One two three"
