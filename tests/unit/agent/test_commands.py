"""Slash commands: how they are found in what a person typed, and what each does."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from agentcli.agent.commands.command import SCREEN_COMMANDS, AsPrompt, Command, Desk
from agentcli.agent.commands.conversation import conversation_commands
from agentcli.agent.commands.sessions import age
from agentcli.agent.events import ApprovalRequested, EntryStored, ModeChanged, RunCommand, Steer, ToolFinished
from agentcli.errors import UsageError, UserError
from agentcli.frontends.terminal.screen_commands import screen_commands
from agentcli.infra.grants import FileGrants
from agentcli.llm.messages import Text
from agentcli.tools.sandbox import Command as ShellCommand
from tests.unit.agent.desk import at_desk
from tests.unit.agent.stage import answering, call

Folder = Path
END = {"text": "The end."}
LATE = {"text": "late", "delay_ms": 10_000}


@pytest.mark.parametrize(
    ("typed", "name", "argument"),
    [
        ("/model", "model", ""),
        ("  /model   ollama/qwen3  ", "model", "ollama/qwen3"),
        ("/q", "quit", ""),
        ("/exit", "quit", ""),
        ("/?", "help", ""),
        ("/new", "clear", ""),
        ("/sessions 3", "resume", "3"),
        *(
            (f"/{alias}", name, "")
            for name, aliases in {
                "usage": "cost stats",
                "fork": "branch",
                "rewind": "checkpoint",
                "rename": "title",
                "btw": "side",
                "permissions": "approvals",
                "tasks": "bashes ps shells",
                "config": "settings",
            }.items()
            for alias in aliases.split()
        ),
    ],
)
def test_a_command_is_found_by_name_and_alias(typed: str, name: str, argument: str) -> None:
    found = conversation_commands().parse(typed)
    assert found is not None
    assert (found[0].name, found[1]) == (name, argument)


@pytest.mark.parametrize(
    "typed",
    ["hello", "", "/", "/etc/hosts is broken", "what does /model do?", "/ model", "//", "/* a comment */", "/- item"],
)
def test_other_text_is_a_prompt(typed: str) -> None:
    assert conversation_commands().parse(typed) is None


def test_an_unknown_command_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no command /modle\. Did you mean /model\?"):
        conversation_commands().parse("/modle x")
    with pytest.raises(UsageError, match=r"no command /zzzzz\. /help shows all"):
        conversation_commands().parse("/zzzzz")


def test_commands_of_the_screen_say_so_elsewhere() -> None:
    assert {command.name for command in screen_commands(cast("Any", None))} == set(SCREEN_COMMANDS)
    for name in SCREEN_COMMANDS:
        with pytest.raises(UsageError, match="needs the terminal's screen"):
            conversation_commands().parse(f"/{name} x")


def test_a_command_that_is_added_is_found_and_listed() -> None:
    async def run(desk: Desk, argument: str) -> str:
        return argument

    commands = conversation_commands()
    commands.add(Command("shout", "say it louder", run, "[WHAT]", ("loud",)))
    found = commands.parse("/loud now")
    assert found is not None
    assert (found[0].name, found[1]) == ("shout", "now")
    assert "shout" in [command.name for command in commands]


async def test_help_lists_all_and_explains_one(tmp_path: Folder) -> None:
    async with at_desk(tmp_path) as desk:
        listed = await desk.says("/help")
        names = [line.split()[0] for line in listed.splitlines() if line.startswith(" ")]
        assert names == [f"/{command.name}" for command in desk.commands]
        assert set(
            "/model /effort /clear /context /usage /resume /fork /rewind /rename /export /diff /review /init "
            "/permissions /plan /tasks /stop /btw /status /config /doctor /add-dir /quit /help".split()
        ) <= set(names)
        assert await desk.says("/help cost") == ("/usage\nshow tokens and cost by model\nAlso /cost, /stats.")
        with pytest.raises(UsageError, match="Did you mean"):
            await desk.says("/help modle")


# The model.


async def test_model_and_effort_count_from_the_next_request_on(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, [END, END, END]) as desk:
        state = desk.session.state
        assert (await desk.says("/model")).splitlines()[1] == "● scripted/script  here"
        assert (await desk.says("/model scripted/script high")).startswith(
            "From the next request on: scripted/script. Effort high."
        )
        await desk.stage.ask("Go")
        assert desk.stage.provider.requests[-1].effort == "high"
        assert "● high" in await desk.says("/effort")
        await desk.says("/effort low")
        await desk.stage.ask("Go")
        assert desk.stage.provider.requests[-1].effort == "low"
        await desk.says("/effort default")
        assert state.effort is None
        await desk.says("/model scripted/other")
        assert state.model == "scripted/other"
        assert desk.kept == {}
        await desk.says("/model scripted/script max keep")
        await desk.says("/effort default keep")
        assert desk.kept == {"provider.model": "scripted/script", "tokens.effort": None}
        desk.picks = [0, 2]
        await desk.says("/model")
        await desk.says("/effort")
        assert (state.model, state.effort) == ("scripted/other", "medium")
        assert desk.kept == {"provider.model": "scripted/other", "tokens.effort": "medium"}
        for wrong in ("/model nothing", "/model scripted/script hard", "/effort hard"):
            with pytest.raises(UsageError):
                await desk.says(wrong)
        assert state.model == "scripted/other"


async def test_context_names_what_fills_the_window(tmp_path: Folder) -> None:
    replies = [
        {"text": "Looking.", "tool_calls": [call("bash", command="echo hello")]},
        {**END, "usage": {"input_tokens": 700}},
    ]
    async with at_desk(tmp_path, replies) as desk:
        before = await desk.says("/context")
        await desk.stage.ask("word " * 300)
        said = await desk.says("/context")
    assert "All of these are estimates." in before
    rows = {line.split("  ")[1]: line for line in said.splitlines()[1:-1]}
    assert set(rows) == {
        "system text", "tools", "instructions", "notes", "prompts", "replies", "thinking", "calls", "results", "free",
    }  # fmt: skip
    assert int(rows["prompts"].split()[-2].replace(",", "")) > 300
    assert rows["prompts"].endswith("%")
    assert "The provider counted 700 with the newest reply." in said


async def test_usage_names_each_model(tmp_path: Folder) -> None:
    usage = {"input_tokens": 1_000, "output_tokens": 20, "cache_read_input_tokens": 500}
    async with at_desk(tmp_path, [{**END, "usage": usage}]) as desk:
        assert await desk.says("/usage") == "Nothing was used yet."
        await desk.stage.ask("Go")
        assert await desk.says("/cost") == "  scripted/script  1,500 tokens in (500 cached), 20 out, $0.0000"


async def test_a_question_beside_the_work_is_answered_and_only_its_price_is_kept(tmp_path: Folder) -> None:
    usage = {"input_tokens": 50, "output_tokens": 5}
    aside = {"text": "Forty-two.", "tool_calls": [call("bash", command="touch made")], "usage": usage}
    async with at_desk(tmp_path, [END, aside, END], mode="bypassPermissions") as desk:
        await desk.stage.ask("Go")
        spent = desk.session.state.meter.total.input_tokens
        messages = desk.stage.messages
        assert await desk.says("/btw What is six times seven?") == "Forty-two."
        request = desk.stage.provider.requests[-1]
        assert [message.role for message in request.messages] == ["user", "assistant", "user"]
        assert "six times seven" in request.messages[-1].text
        assert request.tools == desk.stage.provider.requests[0].tools
        assert desk.stage.messages == messages
        assert not (desk.stage.workspace / "made").exists()
        assert desk.session.state.meter.total.input_tokens == spent + 50
        stored, total = list(desk.stage.entries), desk.session.state.meter.total
    async with at_desk(tmp_path, entries=stored) as desk:
        assert desk.session.state.meter.total == total
        with pytest.raises(UsageError):
            await desk.says("/btw")


async def test_a_question_beside_the_work_is_answered_while_a_turn_waits(tmp_path: Folder) -> None:
    replies = [
        {"tool_calls": [call("bash", command="until [ -e go ]; do sleep 0.02; done", id="c")]},
        {"text": "Aside."},
        END,
    ]
    async with at_desk(tmp_path, replies, mode="bypassPermissions") as desk:
        desk.stage.say("Go")
        await desk.stage.heard(EntryStored, 2)
        assert await desk.says("/btw How is it going?") == "Aside."
        (desk.stage.workspace / "go").touch()
        await desk.stage.ended()
        assert desk.stage.is_valid
        assert "Aside" not in str(desk.stage.messages)


async def test_a_question_that_fails_is_told(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, [{"error": {"kind": "auth", "message": "no such key"}}]) as desk:
        with pytest.raises(UserError, match="could not be answered: no such key"):
            await desk.says("/btw What?")


async def test_a_question_that_broke_off_is_paid_for(tmp_path: Folder) -> None:
    used = {"input_tokens": 50}
    broken = [
        {"usage": used, "error": {"kind": "overloaded"}},
        {"text": "Ha", "usage": used, "error": {"kind": "timeout"}},
    ]
    async with at_desk(tmp_path, broken) as desk:
        with pytest.raises(UserError):
            await desk.says("/btw What?")
        assert desk.session.state.meter.total.input_tokens == 100
        stored = list(desk.stage.entries)
    async with at_desk(tmp_path, entries=stored) as desk:
        assert desk.session.state.meter.total.input_tokens == 100


# Conversations.


async def test_clear_begins_anew_and_resume_goes_back(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, [END, END]) as desk:
        first = desk.session.id
        assert await desk.says("/resume") == "There is no other conversation in this directory."
        await desk.stage.ask("Remember me")
        assert f"/resume {first[:13]}" in await desk.says("/clear")
        assert desk.session.id != first
        listed = await desk.says("/resume")
        assert "Remember me" in listed
        assert listed.endswith("Go on with one: /resume NUMBER")
        with pytest.raises(UsageError, match="no conversation 7"):
            await desk.says("/resume 7")
        desk.picks.append(0)
        assert await desk.says("/resume") == f"Going on with {first} (2 entries)."
        assert desk.session.id == first
        await desk.says("/clear")
        assert first in await desk.says("/resume 1")


async def test_resume_tells_of_messages_that_wait(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, [LATE]) as desk:
        first = desk.session.id
        desk.stage.say("first")
        desk.stage.say("second")
        desk.stage.submit(Steer((Text("third"),)))
        await desk.says("/clear")
        assert "2 messages from then still wait in the queue." in await desk.says(f"/resume {first}")
        assert len(desk.session.state.follow_ups) == 2


async def test_a_fork_goes_on_in_a_copy(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, [END, LATE]) as desk:
        first = desk.session.id
        assert await desk.says("/fork") == "There is nothing to copy yet."
        await desk.stage.ask("Go")
        assert f"/resume {first[:13]}" in await desk.says("/branch")
        assert desk.session.id != first
        assert desk.session.prompts()[0][1] == "Go"


async def test_rewind_puts_a_prompt_back_into_the_input(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, [END, END, END, LATE]) as desk:
        assert await desk.says("/rewind") == "There is no prompt to go back to."
        for prompt in ("one", "two", "three"):
            await desk.stage.ask(prompt)
        listed = await desk.says("/rewind")
        assert [line.split()[:2] for line in listed.splitlines()[:3]] == [["1", "three"], ["2", "two"], ["3", "one"]]
        await desk.says("/rewind 1")
        assert desk.input == "three"
        desk.picks.append(1)
        await desk.says("/rewind")
        assert desk.input == "one"
        assert desk.session.prompts() == []
        desk.stage.say("four")
        with pytest.raises(UserError, match="interrupt it first"):
            await desk.says("/rewind 1")


async def test_a_conversation_is_renamed(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, [END]) as desk:
        await desk.stage.ask("Go")
        await desk.says("/rename The big one")
        assert [info.name for info in await desk.sessions()] == ["The big one"]
        with pytest.raises(UsageError):
            await desk.says("/rename")


async def test_export_writes_markdown_and_never_over_a_file(tmp_path: Folder) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("old ``` text\n")
    edit = call("file_edit", path="a.txt", old_string="old", new_string="new")
    replies = [{"text": "I mend it.", "tool_calls": [edit, call("bash", command="false")]}, END, END]
    async with at_desk(tmp_path, replies, mode="acceptEdits") as desk:
        await desk.stage.ask("Mend a.txt, please!")
        await desk.stage.ask("Taken back")
        await desk.says("/rewind 1")
        said = await desk.says("/export")
        file = desk.stage.workspace / "mend-a-txt-please.md"
        assert said == f"Written to {file}."
        text = file.read_text()
        with pytest.raises(UserError, match="exists"):
            await desk.says("/export")
        await desk.says("/export other.md")
        assert (desk.stage.workspace / "other.md").read_text() == text
    assert text.startswith(
        "# Mend a.txt, please!\n\n## Prompt\n\nMend a.txt, please!\n\n## scripted/script\n\nI mend it."
    )
    assert "**Edit a.txt**\n\n````diff\n--- a/a.txt" in text
    assert "**Run false** (failed)" in text
    assert "Taken back" not in text


async def test_quit_leaves(tmp_path: Folder) -> None:
    async with at_desk(tmp_path) as desk:
        assert await desk.says("/exit") == ""
        assert desk.has_left


# The project.


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


async def test_diff_shows_what_is_not_committed(tmp_path: Folder) -> None:
    async with at_desk(tmp_path) as desk:
        work = desk.stage.workspace
        with pytest.raises(UserError, match="There is no diff"):
            await desk.shows("/diff all")
        git(work, "init", "-q")
        (work / "a é.txt").write_text("one\n")
        assert await desk.shows("/diff all") == "Untracked: a é.txt"
        git(work, "add", ".")
        assert "+one" in await desk.shows("/diff all")
        git(work, "commit", "-qm", "x")
        assert await desk.shows("/diff all") == "Nothing has changed."
        (work / "a é.txt").write_text("two\n")
        (work / "new").touch()
        git(work, "config", "diff.external", "touch ran; true")
        said = await desk.shows("/diff all")
        assert "-one\n+two" in said
        assert said.endswith("Untracked: new")
        assert not (work / "ran").exists()


async def test_review_and_init_are_prompts(tmp_path: Folder) -> None:
    async with at_desk(tmp_path) as desk:
        review = await desk.outcome("/review the parser")
        assert isinstance(review, AsPrompt)
        assert review.text.startswith("Review the parser.")
        review = await desk.outcome("/review")
        assert isinstance(review, AsPrompt)
        assert "uncommitted changes" in review.text
        init = await desk.outcome("/init")
        assert isinstance(init, AsPrompt)
        assert "AGENTS.md" in init.text


async def test_a_folder_is_added_to_the_workspace_and_the_model_told(tmp_path: Folder) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x").write_text("there\n")
    async with at_desk(tmp_path, [{"tool_calls": [call("file_read", path=str(other / "x"), id="c")]}, END]) as desk:
        await desk.says("/add-dir ../other")
        await desk.stage.ask("Go")
        assert "there" in str(desk.stage.results["c"].content)
        assert f"added the folder {other}" in desk.stage.provider.requests[0].messages[0].text
        assert str(other) in await desk.says("/add-dir")
        with pytest.raises(UsageError, match="not a folder"):
            await desk.says("/add-dir nowhere")


# Permissions and jobs.


async def test_permissions_are_shown_with_their_source_and_changed_for_the_session(tmp_path: Folder) -> None:
    grants = FileGrants(tmp_path / "grants.json", tmp_path)
    async with at_desk(tmp_path, grants=grants, deny=["bash(curl *)"]) as desk:
        assert "No rules" not in await desk.says("/permissions")
        await desk.says("/permissions allow bash(make *)")
        await desk.says("/approvals deny Bash(rm *)")
        said = await desk.says("/permissions")
        assert said.splitlines() == [
            "Mode default: edits ask, and what acts beyond the project. Another one: /permissions mode MODE",
            "  refused  bash(curl *)  (settings)",
            "  refused  bash(rm *)  (session)",
            "  allowed  bash(make *)  (session)",
        ]
        for wrong in (
            "/permissions allow",
            "/permissions x",
            "/permissions allow a b",
            "/permissions forget 1",
            "/permissions deny Bsh(x)",
        ):
            with pytest.raises(UsageError):
                await desk.says(wrong)


@pytest.mark.parametrize("verb", ["forget", "revoke"])
async def test_a_grant_for_the_session_is_taken_back(tmp_path: Folder, verb: str) -> None:
    asks = {"tool_calls": [call("bash", command="touch a")]}
    async with at_desk(tmp_path, [asks, END, asks, END, asks, END], can_ask=True) as desk:
        answers = answering(desk.stage, allowed=True, scope="session")
        await desk.stage.ask("Go")
        await desk.stage.ask("Again")
        assert desk.stage.count(ApprovalRequested) == 1
        assert "  allowed  bash(touch a)  (session)" in await desk.says("/permissions list")
        assert await desk.says(f"/permissions {verb} Bash(touch a)") == "bash(touch a) asks again."
        await desk.stage.ask("And again")
        assert desk.stage.count(ApprovalRequested) == 2
        answers.cancel()


async def test_a_refusal_of_the_session_is_taken_back_and_one_of_the_settings_is_not(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, deny=["bash(curl *)"]) as desk:
        said = await desk.says("/permissions deny Bash(rm *)")
        assert "/permissions forget bash(rm *) takes it back" in said
        assert await desk.says("/permissions forget bash(rm *)") == "bash(rm *) does not hold any more."
        for rule, why in (("bash(curl *)", "comes from the settings"), ("bash(rm *)", "is no rule here")):
            with pytest.raises(UsageError, match=why):
                await desk.says(f"/permissions forget {rule}")
    assert [str(rule) for rule in desk.session.state.rules.deny] == ["bash(curl *)"]


async def test_forgetting_without_a_rule_lists_what_can_be_forgotten(tmp_path: Folder) -> None:
    grants = FileGrants(tmp_path / "grants.json", tmp_path)
    async with at_desk(tmp_path, grants=grants, deny=["bash(curl *)"]) as desk:
        with pytest.raises(UsageError, match="There is nothing to forget"):
            await desk.says("/permissions forget")
        grants.add("bash(make)")
        await desk.says("/permissions deny bash(rm *)")
        await desk.says("/permissions allow bash(touch a)")
        with pytest.raises(UsageError) as said:
            await desk.says("/permissions forget")
    assert str(said.value).splitlines() == [
        "Write /permissions forget RULE, or the NUMBER of a lasting grant:",
        "  bash(rm *)  (refused in this session)",
        "  bash(touch a)  (allowed in this session)",
        "  1  bash(make)  (granted for good)",
    ]


async def test_a_lasting_grant_is_taken_back(tmp_path: Folder) -> None:
    grants = FileGrants(tmp_path / "grants.json", tmp_path)
    grants.add("bash(make)")
    replies = [{"tool_calls": [call("bash", command="touch a")]}, END]
    async with at_desk(tmp_path, replies, grants=grants, can_ask=True) as desk:
        answering(desk.stage, allowed=True, scope="always")
        await desk.stage.ask("Go")
        assert (await desk.says("/permissions")).splitlines()[-2:] == ["   1  bash(make)", "   2  bash(touch a)"]
        assert await desk.says("/permissions forget 2") == "bash(touch a) asks again."
        assert grants.list() == ["bash(make)"]
        assert desk.session.state.rules.allow == []


async def test_plan_goes_on_and_off_and_back_to_the_mode_before(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, mode="acceptEdits") as desk:
        await desk.says("/plan")
        assert desk.session.state.mode == "plan"
        assert "acceptEdits again" in await desk.says("/plan")
        await asyncio.sleep(0)
        assert [event.mode for event in desk.stage.of(ModeChanged)] == ["plan", "acceptEdits"]


async def test_jobs_are_listed_and_ended(tmp_path: Folder) -> None:
    async with at_desk(tmp_path) as desk:
        sandbox, work = desk.session.runtime.calls.workspace.sandbox, desk.stage.workspace
        assert await desk.says("/tasks") == await desk.says("/stop") == "No command runs in the background."
        for _ in range(3):
            await sandbox.start_job(ShellCommand("sleep 30", work))
        assert (await desk.says("/ps")).splitlines()[0] == "  job_1   runs   sleep 30"
        assert await desk.says("/stop 2") == "Ended job_2."
        assert await desk.says("/stop") == "Ended job_1, job_3."
        assert not any(job.is_running for job in sandbox.jobs())
        assert "job_3   ended  sleep 30" in await desk.says("/tasks")
        with pytest.raises(UserError, match="no job"):
            await desk.says("/stop 9")


# How things stand.


async def test_status_config_and_doctor(tmp_path: Folder) -> None:
    async with at_desk(tmp_path) as desk:
        said = await desk.says("/status")
        for part in (desk.session.id, "scripted/script", "default", str(desk.stage.workspace), "tokens ("):
            assert part in said
        assert await desk.says("/settings") == "about config"
        assert await desk.says("/doctor") == "about doctor"


async def test_the_mode_the_model_and_the_effort_may_change_while_a_turn_runs(tmp_path: Folder) -> None:
    async with at_desk(tmp_path, [{"text": "One two", "chunk": 3, "delay_ms": 10}]) as desk:
        desk.stage.say("Go")
        await desk.stage.heard(EntryStored)
        for typed in ("/plan", "/model scripted/script", "/effort max", "/context", "/status", "/permissions"):
            await desk.says(typed)
        desk.stage.submit(RunCommand("true", to_model=False))
        await desk.stage.heard(ToolFinished)
        done = await desk.stage.ended()
        assert done.text == "One two"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(5, "just now"), (119, "1 min ago"), (3_599, "59 min ago"), (3 * 3_600, "3 h ago"), (86_400 * 60, "60 d ago"),
     (86_400 * 61, "2 months ago"), (86_400 * 800, "2 y ago"), (-5, "just now"), (-500, "some time")],
)  # fmt: skip
def test_how_long_ago_something_was(seconds: float, said: str) -> None:
    assert age(seconds) == said
