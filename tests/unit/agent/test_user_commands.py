"""Slash commands from Markdown files: how they are found, what they say, and what they may run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentcli.agent.commands.command import AsPrompt
from agentcli.errors import UsageError, UserError
from agentcli.extensions.user_commands import add_user_commands
from tests.unit.agent.command_host import FakeHost, command_host

Folder = Path


def put(folder: Path, name: str, text: str) -> Path:
    file = folder / "commands" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def loaded(host: FakeHost, *folders: Path) -> Sequence[str]:
    """Add the commands of these folders; gives what was told."""
    told: list[str] = []
    add_user_commands(host.commands, [folder / "commands" for folder in folders], told.append)
    return told


async def prompt(host: FakeHost, typed: str) -> AsPrompt:
    outcome = await host.outcome(typed)
    assert isinstance(outcome, AsPrompt)
    return outcome


async def test_a_file_is_a_command_and_a_folder_a_part_of_its_name(tmp_path: Folder) -> None:
    put(tmp_path, "explain.md", "# Explain it\n\nExplain the last change.\n")
    put(tmp_path, "git/log/short.md", "---\ndescription: the: log\nargument-hint: [since] [until]\n---\nShow the log.")
    put(tmp_path, "notes.txt", "no command")
    async with command_host(tmp_path) as host:
        assert loaded(host, tmp_path, tmp_path / "nowhere") == []
        assert (await prompt(host, "/explain")).text == "# Explain it\n\nExplain the last change."
        assert (await prompt(host, "/git:log:short")).text == "Show the log."
        helped = await host.says("/help git:log:short")
        assert helped == "/git:log:short [since] [until]\nthe: log"
        assert "Explain it" in await host.says("/help explain")


@pytest.mark.parametrize(
    ("body", "argument", "text"),
    [
        ("Do $ARGUMENTS now", "a 'b c'", "Do a 'b c' now"),
        ("$1, $2 and $3.", "a 'b c'", "a, b c and ."),
        ("$1", "it's", "it's"),
        ("Costs $10 or $ARGUMENT", "x", "Costs $10 or $ARGUMENT\n\nx"),
        ("Do it.", "with care", "Do it.\n\nwith care"),
        ("Do it to @src/app.py.", "", "Do it to @src/app.py."),
        ("Say $1", "$2 !`touch x`", "Say $2"),
    ],
)
async def test_what_follows_the_name_takes_its_places(tmp_path: Folder, body: str, argument: str, text: str) -> None:
    put(tmp_path, "do.md", body)
    async with command_host(tmp_path) as host:
        loaded(host, tmp_path)
        assert (await prompt(host, f"/do {argument}")).text == text


async def test_the_commands_of_the_project_come_before_the_person_s_and_agentcli_s_own_before_all(
    tmp_path: Folder,
) -> None:
    put(tmp_path / "user", "do.md", "user")
    put(tmp_path / "project", "do.md", "project")
    put(tmp_path / "project", "clear.md", "mine")
    put(tmp_path / "project", "cost.md", "mine")
    async with command_host(tmp_path) as host:
        told = loaded(host, tmp_path / "user", tmp_path / "project")
        assert (await prompt(host, "/do")).text == "project"
        assert len(told) == 2
        assert all("is a built-in command" in text for text in told)
        found = host.commands.parse("/clear")
        assert found is not None
        assert "new session" in found[0].help


@pytest.mark.parametrize(
    "text",
    ["", "---\ndescription: x\n---\n \n", "---\na: [\n---\nx", "---\n- a\n---\nx", "---\nallowed-tools: [a b]\n---\nx"],
)
async def test_a_broken_file_is_reported_and_the_others_are_there(tmp_path: Folder, text: str) -> None:
    bad = put(tmp_path, "bad.md", text)
    put(tmp_path, "good.md", "Good.")
    put(tmp_path, "with space.md", "x")
    (tmp_path / "commands" / "binary.md").write_bytes(b"\xff\xfe\x00")
    async with command_host(tmp_path) as host:
        told = loaded(host, tmp_path)
        assert len(told) == 3
        assert any(notice.startswith(f"{bad} is not a command: ") for notice in told)
        assert (await prompt(host, "/good")).text == "Good."
        with pytest.raises(UsageError):
            await host.outcome("/bad")


async def test_the_output_of_a_command_takes_its_place(tmp_path: Folder) -> None:
    put(tmp_path, "do.md", "---\nallowed-tools: Bash(touch:*), Read\n---\nHere: !`ls`. !`touch $1`Made: !`ls $1`")
    put(tmp_path, "go.md", "---\nallowed-tools:\n  - Bash(touch made)\n---\n!`touch made && rm x`")
    async with command_host(tmp_path) as host:
        loaded(host, tmp_path)
        (host.stage.workspace / "a.txt").touch()
        assert (await prompt(host, "/do b.txt")).text == "Here: a.txt. Made: b.txt"
        with pytest.raises(UserError, match=r"wants to run `touch made && rm x`.*Add bash\(touch made && rm x\) to"):
            await host.outcome("/go")


async def test_a_command_in_an_argument_is_text(tmp_path: Folder) -> None:
    put(tmp_path, "do.md", "---\nallowed-tools: Bash\n---\nSay: $ARGUMENTS")
    async with command_host(tmp_path) as host:
        loaded(host, tmp_path)
        assert (await prompt(host, "/do !`touch made`")).text == "Say: !`touch made`"
        assert not (host.stage.workspace / "made").exists()


async def test_a_command_that_is_not_allowed_names_the_missing_rule_and_runs_once_it_is(tmp_path: Folder) -> None:
    file = put(tmp_path, "do.md", "Made: !`touch made; echo yes $1`")
    async with command_host(tmp_path) as host:
        loaded(host, tmp_path)
        with pytest.raises(UserError) as caught:
            await host.outcome("/do now")
        assert f"allowed-tools in {file}, or use /permissions allow bash(touch made; echo yes now)" in str(caught.value)
        assert not (host.stage.workspace / "made").exists()
        await host.says("/permissions allow bash(touch made; echo yes now)")
        assert (await prompt(host, "/do now")).text == "Made: yes now"
        await host.says("/permissions deny bash(touch *)")
        with pytest.raises(UserError, match=r"is denied: the rule bash\(touch \*\) denies it\.$"):  # no rule helps
            await host.outcome("/do now")


async def test_plan_mode_holds_for_the_commands_of_a_file_too(tmp_path: Folder) -> None:
    put(tmp_path, "do.md", "---\nallowed-tools: Bash(touch made)\n---\n!`touch made`")
    async with command_host(tmp_path, mode="plan") as host:
        loaded(host, tmp_path)
        with pytest.raises(UserError, match="plan mode"):
            await host.outcome("/do")


async def test_a_file_cannot_allow_calls_that_an_ask_rule_covers(tmp_path: Folder) -> None:
    put(tmp_path, "do.md", "---\nallowed-tools: Bash(touch made)\n---\n!`touch made`")
    async with command_host(tmp_path) as host:
        loaded(host, tmp_path)
        await host.says("/permissions ask bash(touch *)")
        with pytest.raises(UserError, match="requires approval"):
            await host.outcome("/do")
        assert not (host.stage.workspace / "made").exists()


async def test_a_command_may_name_the_model_that_answers_it(tmp_path: Folder) -> None:
    put(tmp_path, "do.md", "---\nmodel: scripted/other\n---\nDo it.")
    put(tmp_path, "bad.md", "---\nmodel: nobody\n---\nDo it.")
    async with command_host(tmp_path) as host:
        loaded(host, tmp_path)
        assert await prompt(host, "/do") == AsPrompt("Do it.", "scripted/other")
        with pytest.raises(UsageError):
            await host.outcome("/bad")


def test_yaml_is_not_loaded_where_there_is_no_such_file(tmp_path: Folder) -> None:
    code = (
        "import sys, pathlib\n"
        "from agentcli.agent.commands.session import conversation_commands\n"
        "from agentcli.extensions.user_commands import add_user_commands\n"
        f"add_user_commands(conversation_commands(), [pathlib.Path({str(tmp_path)!r})], print)\n"
        "assert 'yaml' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
