"""Slash commands: how they are found in what a person typed, and what each does."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from agentcli.agent.commands.command import SCREEN_COMMANDS, AsPrompt
from agentcli.agent.commands.session import conversation_commands
from agentcli.agent.commands.sessions import age
from agentcli.agent.events import EntryStored, ModeChanged, QuestionEvent, ToolFinished
from agentcli.agent.ops import RunCommand, Steer
from agentcli.agent.state import prompts
from agentcli.conversation.entries import FileChange, FilesChanged, FileState
from agentcli.errors import NoSession, SessionInUse, UsageError, UserError
from agentcli.frontends.terminal.screen_commands import screen_commands
from agentcli.infra.state_files import FileGrants
from agentcli.llm.messages import Text
from agentcli.tools.command import Command
from tests.rows import each_row
from tests.unit.agent.command_host import command_host
from tests.unit.agent.stage import answering, call

Folder = Path
END = {"text": "The end."}
LATE = {"text": "late", "delay_ms": 10_000}


@each_row(
    "typed, name, argument",
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


def test_commands_of_the_screen_are_named_for_other_front_ends() -> None:
    assert {command.name for command in screen_commands(*[cast("Any", None)] * 5)} == set(SCREEN_COMMANDS) - {"remote"}


async def test_help_lists_all_and_explains_one(tmp_path: Folder) -> None:
    async with command_host(tmp_path) as host:
        short, listed = await host.says("/help"), await host.says("/help commands")
        names = [line.split()[0] for line in listed.splitlines() if line.startswith(" ")]
        assert names == [f"/{command.name}" for command in host.commands]
        assert set(names) <= set(short.split())
        assert set(
            "/model /effort /clear /context /usage /resume /fork /rewind /rename /export /diff /review /init "
            "/permissions /plan /tasks /stop /btw /status /config /doctor /add-dir /quit /help".split()
        ) <= set(names)
        assert await host.says("/help cost") == ("/usage\nshow this session's tokens and cost\nAlso /cost, /stats.")
        with pytest.raises(UsageError, match="Did you mean"):
            await host.says("/help modle")


# The model.


async def test_model_and_effort_count_from_the_next_request_on(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [END, END, END]) as host:
        state = host.session.state
        assert (await host.says("/model")).splitlines()[1] == "● scripted/script  here"
        assert (await host.says("/model scripted/script high")).startswith(
            "Starting with the next request: scripted/script. Effort high."
        )
        await host.stage.ask("Go")
        assert host.stage.provider.requests[-1].effort == "high"
        assert "● high" in await host.says("/effort")
        await host.says("/effort low")
        await host.stage.ask("Go")
        assert host.stage.provider.requests[-1].effort == "low"
        await host.says("/effort default")
        assert state.model.effort is None
        await host.says("/model scripted/other")
        assert state.model.name == "scripted/other"
        assert host.kept == {}
        await host.says("/model scripted/script max keep")
        await host.says("/effort default keep")
        assert host.kept == {"provider.model": "scripted/script", "tokens.effort": None}
        host.picks = [0, 2]
        await host.says("/model")
        await host.says("/effort")
        assert (state.model.name, state.model.effort) == ("scripted/other", "medium")
        assert host.kept == {"provider.model": "scripted/script", "tokens.effort": None}
        for wrong in ("/model nothing", "/model scripted/script hard", "/effort hard"):
            with pytest.raises(UsageError):
                await host.says(wrong)
        assert state.model.name == "scripted/other"


async def test_context_names_what_fills_the_window(tmp_path: Folder) -> None:
    replies = [
        {"text": "Looking.", "tool_calls": [call("bash", command="echo hello")]},
        {**END, "usage": {"input_tokens": 700}},
    ]
    async with command_host(tmp_path, replies) as host:
        before = await host.says("/context")
        await host.stage.ask("word " * 300)
        said = await host.says("/context")
    assert "the next request uses about " in before
    rows = {line.split("  ")[1]: line for line in said.splitlines()[1:-1]}
    assert {"messages", "free"} <= set(rows)
    assert "summary" not in rows  # it is empty
    tokens = {source: int(row.split()[-2].replace(",", "")) for source, row in rows.items()}
    shares = [float(row.split()[-1].removesuffix("%")) for row in rows.values()]
    found = re.search(r"uses about ([\d,]+) of ([\d,]+) tokens", said)
    request, window = (int(number.replace(",", "")) for number in found.groups()) if found else (0, 0)
    assert sum(tokens.values()) - tokens["free"] == pytest.approx(request, abs=window / 1_000)
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert tokens["messages"] > 10
    assert re.search(r"uses about 70\d of", said)  # as the provider counted the newest reply and its request


async def test_usage_names_each_model(tmp_path: Folder) -> None:
    usage = {"input_tokens": 1_000, "output_tokens": 20, "cache_read_input_tokens": 500}
    async with command_host(tmp_path, [{**END, "usage": usage}]) as host:
        assert await host.says("/usage") == "No requests in this session yet."
        await host.stage.ask("Go")
        assert "  scripted/script  1,500 tokens in (500 cached), 20 out, $0.0000\n" in await host.says("/cost")


async def test_a_question_beside_the_work_is_answered_and_only_its_price_is_kept(tmp_path: Folder) -> None:
    usage = {"input_tokens": 50, "output_tokens": 5}
    aside = {"text": "Forty-two.", "tool_calls": [call("bash", command="touch made")], "usage": usage}
    async with command_host(tmp_path, [END, aside, END], mode="bypassPermissions") as host:
        await host.stage.ask("Go")
        spent = host.session.state.meter.total.usage.input_tokens
        messages = host.stage.messages
        assert await host.says("/btw What is six times seven?") == "Forty-two."
        request = host.stage.provider.requests[-1]
        assert [message.role for message in request.messages] == ["user", "assistant", "user"]
        assert "six times seven" in request.messages[-1].text
        assert request.tools == host.stage.provider.requests[0].tools
        assert host.stage.messages == messages
        assert not (host.stage.workspace / "made").exists()
        assert host.session.state.meter.total.usage.input_tokens == spent + 50
        stored, total = list(host.stage.entries), host.session.state.meter.total
    async with command_host(tmp_path, entries=stored) as host:
        assert host.session.state.meter.total == total
        with pytest.raises(UsageError):
            await host.says("/btw")


async def test_a_question_beside_the_work_is_answered_while_a_turn_waits(tmp_path: Folder) -> None:
    replies = [
        {"tool_calls": [call("bash", command="until [ -e go ]; do sleep 0.02; done", id="c")]},
        {"text": "Aside."},
        END,
    ]
    async with command_host(tmp_path, replies, mode="bypassPermissions") as host:
        host.stage.say("Go")
        await host.stage.heard(EntryStored, 2)
        assert await host.says("/btw How is it going?") == "Aside."
        (host.stage.workspace / "go").touch()
        await host.stage.ended()
        assert host.stage.is_valid
        assert "Aside" not in str(host.stage.messages)


async def test_a_question_that_fails_is_reported(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [{"error": {"kind": "auth", "message": "no such key"}}]) as host:
        with pytest.raises(UserError, match="Could not answer the question: no such key"):
            await host.says("/btw What?")


async def test_a_question_that_broke_off_is_paid_for(tmp_path: Folder) -> None:
    used = {"input_tokens": 50}
    broken = [
        {"usage": used, "error": {"kind": "overloaded"}},
        {"text": "Ha", "usage": used, "error": {"kind": "timeout"}},
    ]
    async with command_host(tmp_path, broken) as host:
        with pytest.raises(UserError):
            await host.says("/btw What?")
        assert host.session.state.meter.total.usage.input_tokens == 100
        stored = list(host.stage.entries)
    async with command_host(tmp_path, entries=stored) as host:
        assert host.session.state.meter.total.usage.input_tokens == 100


# Conversations.


async def test_clear_begins_again_and_resume_goes_back(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [END, END]) as host:
        first = host.session.id
        assert (await host.says("/resume")).startswith("There are no other sessions in this directory")
        await host.stage.ask("Remember me")
        assert f"/resume {first[:13]}" in await host.says("/clear")
        assert host.session.id != first
        listed = await host.says("/resume")
        assert "Remember me" in listed
        assert "To resume one: /resume NUMBER" in listed
        with pytest.raises(UsageError, match="no conversation 7"):
            await host.says("/resume 7")
        host.picks.append(0)
        assert await host.says("/resume") == f"Resumed {first} (2 entries)."
        assert host.session.id == first
        await host.says("/clear")
        assert first in await host.says("/resume 1")


async def test_resume_finds_what_was_reported_in_every_directory(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [{"text": "The kestrel hovers."}, END]) as host:
        first = host.session.id
        await host.stage.ask("Which bird?")
        await host.says("/clear")
        listed = await host.says("/resume kestr")
        assert "Which bird?" in listed
        assert "The kestrel hovers." in listed
        assert first[:13] in listed
        host.picks += [1, 0]  # those of every directory, and there the newest
        assert first in await host.says("/resume")
        await host.says("/clear")
        host.picks.append(0)
        assert first in await host.says("/resume bird")
        with pytest.raises(NoSession, match="There is no session 'albatross'"):
            await host.says("/resume albatross")


async def test_resume_tells_of_messages_that_wait(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [LATE]) as host:
        first = host.session.id
        host.stage.say("first")
        host.stage.say("second")
        host.stage.submit(Steer((Text("third"),)))
        await host.says("/clear")
        assert "2 queued messages from before will be sent next." in await host.says(f"/resume {first}")
        assert len(host.session.state.conversation.queue.follow_ups) == 2


async def test_a_conversation_that_is_open_elsewhere_can_be_taken_over(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [END]) as host:
        first = host.session.id
        await host.stage.ask("Go")
        await host.says("/clear")
        elsewhere, _ = await host.store.open(first)
        with pytest.raises(SessionInUse):
            await host.says(f"/resume {first}")
        await elsewhere.close()
        assert host.asked == [[("Take it over", "it closes there"), ("Fork it", "continue in a copy"), ("Cancel", "")]]


async def test_a_fork_continues_in_a_copy(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [END, LATE]) as host:
        first = host.session.id
        assert await host.says("/fork") == "There is nothing to fork yet."
        await host.stage.ask("Go")
        assert f"/resume {first[:13]}" in await host.says("/branch")
        assert host.session.id != first
        assert prompts(host.session.state.conversation)[0][1] == "Go"


@pytest.mark.slow
async def test_rewind_puts_a_prompt_back_into_the_input(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [END, END, END, LATE]) as host:
        assert await host.says("/rewind") == "There is no prompt to rewind to."
        for prompt in ("one", "two", "three"):
            await host.stage.ask(prompt)
        listed = await host.says("/rewind")
        assert [line.split()[:2] for line in listed.splitlines()[:3]] == [["1", "three"], ["2", "two"], ["3", "one"]]
        await host.says("/rewind 1")
        assert host.input == "three"
        host.picks.append(1)
        await host.says("/rewind")
        assert host.input == "one"
        assert prompts(host.session.state.conversation) == []
        host.stage.say("four")
        with pytest.raises(UserError, match="Interrupt it first"):
            await host.says("/rewind 1")


async def test_rewind_asks_only_for_what_was_not_typed(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [END]) as host:
        await host.stage.ask("Go")
        made = FileChange(str(tmp_path / "a.txt"), None, FileState("file", 0o644))
        host.session.append(FilesChanged("call", (made,)))
        host.picks.append(0)
        assert await host.says("/rewind") == "Nothing was rewound."  # the second question was dismissed
        assert len(host.asked) == 2
        assert prompts(host.session.state.conversation)
        host.picks.append(0)
        await host.says("/rewind conversation")
        assert len(host.asked) == 3
        assert prompts(host.session.state.conversation) == []


async def test_a_conversation_is_renamed(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [END]) as host:
        await host.stage.ask("Go")
        await host.says("/rename The big one")
        assert [info.name for info in await host.sessions()] == ["The big one"]
        with pytest.raises(UsageError):
            await host.says("/rename")


async def test_export_writes_markdown_and_never_over_a_file(tmp_path: Folder) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("old ``` text\n")
    edit = call("file_edit", path="a.txt", old_string="old", new_string="new")
    replies = [{"text": "I mend it.", "tool_calls": [edit, call("bash", command="false")]}, END, END]
    async with command_host(tmp_path, replies, mode="acceptEdits") as host:
        await host.stage.ask("Mend a.txt, please!")
        await host.stage.ask("Taken back")
        await host.says("/rewind 1")
        said = await host.says("/export")
        file = host.stage.workspace / "mend-a-txt-please.md"
        assert said == f"Exported to {file}."
        text = file.read_text()
        with pytest.raises(UserError, match="exists"):
            await host.says("/export")
        await host.says("/export other.md")
        assert (host.stage.workspace / "other.md").read_text() == text
    assert text.startswith("# Mend a.txt, please!\n\n- Date: ")
    assert "## Prompt\n\n> Mend a.txt, please!\n\n### scripted/script\n\nI mend it." in text
    assert "✓ **Edit a.txt** · +1 -1\n\n````diff\n--- a/a.txt" in text
    assert "✗ **Run false**" in text
    assert "Taken back" not in text


async def test_quit_leaves(tmp_path: Folder) -> None:
    async with command_host(tmp_path) as host:
        assert await host.says("/exit") == ""
        assert host.has_left


# The project.


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


async def test_review_and_init_are_prompts(tmp_path: Folder) -> None:
    async with command_host(tmp_path) as host:
        review = await host.outcome("/review the parser")
        assert isinstance(review, AsPrompt)
        assert review.text.startswith("Review the parser.")
        review = await host.outcome("/review")
        assert isinstance(review, AsPrompt)
        assert "uncommitted changes" in review.text
        init = await host.outcome("/init")
        assert isinstance(init, AsPrompt)
        assert "AGENTS.md" in init.text


async def test_a_folder_is_added_to_the_workspace_and_the_model_informed(tmp_path: Folder) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x").write_text("there\n")
    async with command_host(
        tmp_path, [{"tool_calls": [call("file_read", path=str(other / "x"), id="c")]}, END]
    ) as host:
        await host.says("/add-dir ../other")
        await host.stage.ask("Go")
        assert "there" in str(host.stage.results["c"].content)
        assert f"added the folder {other}" in host.stage.provider.requests[0].messages[0].text
        assert str(other) in await host.says("/add-dir")
        with pytest.raises(UsageError, match="not a folder"):
            await host.says("/add-dir nowhere")


# Permissions and jobs.


async def test_permissions_are_shown_with_their_source_and_changed_for_the_session(tmp_path: Folder) -> None:
    grants = FileGrants(tmp_path / "grants.json", tmp_path)
    async with command_host(tmp_path, grants=grants, deny=["bash(curl *)"]) as host:
        assert "No rules" not in await host.says("/permissions")
        await host.says("/permissions allow bash(make *)")
        await host.says("/approvals deny Bash(rm *)")
        said = await host.says("/permissions")
        assert said.splitlines() == [
            (
                "Mode default: asks before edits and before anything outside the project. "
                "To change it: /permissions mode MODE"
            ),
            "  deny   bash(curl *)  (settings)",
            "  deny   bash(rm *)  (session)",
            "  allow  bash(make *)  (session)",
        ]
        for wrong in (
            "/permissions allow",
            "/permissions x",
            "/permissions allow a b",
            "/permissions forget 1",
            "/permissions deny Bsh(x)",
        ):
            with pytest.raises(UsageError):
                await host.says(wrong)


@pytest.mark.parametrize("verb", ["forget", "revoke"])
async def test_a_grant_for_the_session_is_revoked(tmp_path: Folder, verb: str) -> None:
    asks = {"tool_calls": [call("bash", command="touch a")]}
    async with command_host(tmp_path, [asks, END, asks, END, asks, END], can_ask=True) as host:
        answers = answering(host.stage, allowed=True, scope="session")
        await host.stage.ask("Go")
        await host.stage.ask("Again")
        assert host.stage.count(QuestionEvent) == 1
        assert "  allow  bash(touch a)  (session)" in await host.says("/permissions list")
        assert await host.says(f"/permissions {verb} Bash(touch a)") == "Rule removed: bash(touch a) will ask again."
        await host.stage.ask("And again")
        assert host.stage.count(QuestionEvent) == 2
        answers.cancel()


async def test_a_refusal_of_the_session_is_revoked_and_one_of_the_settings_is_not(tmp_path: Folder) -> None:
    async with command_host(tmp_path, deny=["bash(curl *)"]) as host:
        said = await host.says("/permissions deny Bash(rm *)")
        assert "To remove it: /permissions forget bash(rm *)" in said
        assert await host.says("/permissions forget bash(rm *)") == "Rule removed: bash(rm *)."
        for rule, why in (("bash(curl *)", "comes from the settings"), ("bash(rm *)", "is not a rule")):
            with pytest.raises(UsageError, match=why):
                await host.says(f"/permissions forget {rule}")
    assert [str(rule) for rule in host.session.state.rules.deny] == ["bash(curl *)"]


async def test_forgetting_without_a_rule_lists_what_can_be_forgotten(tmp_path: Folder) -> None:
    grants = FileGrants(tmp_path / "grants.json", tmp_path)
    async with command_host(tmp_path, grants=grants, deny=["bash(curl *)"]) as host:
        with pytest.raises(UsageError, match="There are no rules to remove"):
            await host.says("/permissions forget")
        grants.add("bash(make)")
        await host.says("/permissions deny bash(rm *)")
        await host.says("/permissions allow bash(touch a)")
        with pytest.raises(UsageError) as said:
            await host.says("/permissions forget")
    assert str(said.value).splitlines() == [
        "Name a rule: /permissions forget RULE, or the NUMBER of a saved grant:",
        "  deny   bash(rm *)  (session)",
        "  allow  bash(touch a)  (session)",
        "      1  bash(make)  (always, in this project)",
    ]


async def test_a_lasting_grant_is_revoked(tmp_path: Folder) -> None:
    grants = FileGrants(tmp_path / "grants.json", tmp_path)
    grants.add("bash(make)")
    replies = [{"tool_calls": [call("bash", command="touch a")]}, END]
    async with command_host(tmp_path, replies, grants=grants, can_ask=True) as host:
        answering(host.stage, allowed=True, scope="always")
        await host.stage.ask("Go")
        shown = (await host.says("/permissions")).splitlines()[-3:-1]
        assert [row.split()[:3] for row in shown] == [["1", "bash(make)", "(always,"], ["2", "bash(touch", "a)"]]
        assert await host.says("/permissions forget 2") == "Rule removed: bash(touch a) will ask again."
        assert grants.list() == ["bash(make)"]
        assert host.session.state.rules.allow == []


async def test_leaving_plan_mode_returns_to_the_mode_before(tmp_path: Folder) -> None:
    async with command_host(tmp_path, mode="acceptEdits") as host:
        await host.says("/plan")
        assert host.session.state.mode == "plan"
        assert "acceptEdits again" in await host.says("/plan")
        await asyncio.sleep(0)
        assert [event.mode for event in host.stage.of(ModeChanged)] == ["plan", "acceptEdits"]


async def test_jobs_are_listed_and_ended(tmp_path: Folder) -> None:
    async with command_host(tmp_path) as host:
        sandbox, work = host.session.runtime.calls.workspace.sandbox, host.stage.workspace
        (detach := asyncio.Event()).set()
        assert await host.says("/tasks") == "Nothing runs in the background."
        assert await host.says("/stop") == "No background jobs are running."
        for _ in range(3):
            await sandbox.run(Command("sleep 30", work), detach=detach)
        assert (await host.says("/ps")).splitlines()[0] == "  job_1   runs   sleep 30"
        assert await host.says("/stop 2") == "Stopped job_2."
        assert await host.says("/stop") == "Stopped job_1, job_3."
        assert not any(job.is_running for job in sandbox.jobs.list())
        assert "job_3   ended by signal 15 · 0 s  sleep 30" in await host.says("/tasks")
        await sandbox.run(Command("sleep 0.1; exit 3", work), detach=detach)
        while sandbox.jobs.list()[-1].is_running:
            await asyncio.sleep(0.02)
        assert re.search(r"job_4   failed \(exit 3\) · 0 s  sleep 0.1; exit 3", await host.says("/tasks"))
        assert await host.says("/stop job_4") == "job_4 has already ended."
        assert "JOB shows" in await host.says("/tasks")
        await sandbox.run(Command("seq 9000; sleep 0.1", work), detach=detach)
        while sandbox.jobs.list()[-1].is_running:
            await asyncio.sleep(0.02)
        first, *lines, last = (await host.says("/tasks 5")).splitlines()
        assert "ended (exit 0)" in first
        assert lines == [f"    {number}" for number in range(8981, 9001)]
        assert last == f"  All of it: {sandbox.jobs.list()[-1].output_file}"
        with pytest.raises(UserError, match="no job"):
            await host.says("/stop 9")


# How things stand.


async def test_status_config_and_doctor(tmp_path: Folder) -> None:
    async with command_host(tmp_path) as host:
        said = await host.says("/status")
        for part in (host.session.id, "scripted/script", "ask before edits", str(host.stage.workspace), "tokens ("):
            assert part in said
        assert await host.says("/settings") == "about config"
        assert await host.says("/doctor") == "about doctor"


async def test_the_mode_the_model_and_the_effort_may_change_while_a_turn_runs(tmp_path: Folder) -> None:
    async with command_host(tmp_path, [{"text": "One two", "chunk": 3, "delay_ms": 10}]) as host:
        host.stage.say("Go")
        await host.stage.heard(EntryStored)
        for typed in ("/plan", "/model scripted/script", "/effort max", "/context", "/status", "/permissions"):
            await host.says(typed)
        host.stage.submit(RunCommand("true", to_model=False))
        await host.stage.heard(ToolFinished)
        done = await host.stage.ended()
        assert done.text == "One two"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(5, "just now"), (119, "1 min ago"), (3_599, "59 min ago"), (3 * 3_600, "3 h ago"), (86_400 * 60, "60 d ago"),
     (86_400 * 61, "2 months ago"), (86_400 * 800, "2 y ago"), (-5, "just now"), (-500, "some time")],
)  # fmt: skip
def test_ages_are_formatted(seconds: float, said: str) -> None:
    assert age(seconds) == said
