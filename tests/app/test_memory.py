"""Working memory: a project's files that outlive a conversation, and nothing beside them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, ToolError
from agentcli.agent.events import ToolFinished
from agentcli.infra.state_files import MemoryFiles
from agentcli.settings.structs import MemorySettings
from tests.app.running import Place, call
from tests.conformance.replies import Call, Said, anthropic_reply
from tests.conformance.servers import anthropic_server

Ask = Callable[..., Any]
DONE = {"text": "Done."}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/sub").mkdir()


def kept(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "home/state/memory"
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(folder)).partition("/")[2]: path.read_text() for path in files}


async def asked(tmp_path: Path, *calls: dict[str, Any], cwd: str = "repo", mode: str = "default") -> list[Any]:
    """The results of calls, each in a turn of its own."""
    script = tmp_path / "script.jsonl"
    replies = [reply for one in calls for reply in ({"tool_calls": [one]}, DONE)]
    script.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    results = []
    async with Agent(f"scripted/{script}", cwd=tmp_path / cwd, permissions=mode) as agent:
        for number, _ in enumerate(calls):
            async for event in agent.stream(f"turn {number}"):
                if isinstance(event, ToolFinished):
                    results.append(event.result)
    return results


async def test_notes_are_there_for_the_next_conversation_in_any_folder_of_the_project(tmp_path: Path) -> None:
    write = call("memory", command="write", path="api/errors.md", content="E42 means full.\nmore\n")
    assert not (await asked(tmp_path, write))[0].is_error
    assert kept(tmp_path) == {"api/errors.md": "E42 means full.\nmore\n"}
    listed, shown = await asked(
        tmp_path, call("memory", command="view"), call("memory", command="view", path="api/errors.md"), cwd="repo/sub"
    )
    assert listed.content == "api/errors.md: E42 means full."
    assert shown.content == "E42 means full.\nmore\n"


async def test_it_works_in_plan_mode_and_asks_nobody(tmp_path: Path) -> None:
    (result,) = await asked(tmp_path, call("memory", command="write", path="a.md", content="x"), mode="plan")
    assert not result.is_error
    assert os.stat(next((tmp_path / "home/state/memory").rglob("a.md"))).st_mode & 0o777 == 0o600  # noqa: PTH116


@pytest.mark.parametrize(
    "name",
    [
        "../a.md", "/etc/passwd", "a/../../b", "~/a", "a\0b", ".hidden", "a/.git/config", "a//b", "", "a/", "a\\b",
        "x" * 300, "a/b/c/d/e.md", "a\nb", "con.", "a ", "-rf", "\u202ea.md",
    ],
)  # fmt: skip
async def test_names_that_lead_elsewhere_or_are_odd_are_refused(tmp_path: Path, name: str) -> None:
    results = await asked(
        tmp_path,
        *(call("memory", command=command, path=name, content="x") for command in ("write", "delete", "view") if name),
    )
    assert all(result.is_error for result in results)
    assert kept(tmp_path) == {}


@pytest.mark.full
@pytest.mark.slow
async def test_links_that_were_planted_lead_nowhere(tmp_path: Path) -> None:
    await asked(tmp_path, call("memory", command="write", path="a/b.md", content="x"))
    folder = next((tmp_path / "home/state/memory").rglob("b.md")).parent.parent
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("SECRET")
    (folder / "file").symlink_to(tmp_path / "secret/key")
    (folder / "folder").symlink_to(tmp_path / "secret")
    calls = [call("memory", command="view", path=path) for path in ("file", "folder/key")]
    calls += [call("memory", command="write", path=path, content="y") for path in ("file", "folder/new")]
    results = await asked(tmp_path, *calls, call("memory", command="view"))
    assert [result.is_error for result in results] == [True, True, True, True, False]
    assert "SECRET" not in "".join(str(result.content) for result in results)
    assert [path.name for path in (tmp_path / "secret").iterdir()] == ["key"]
    assert (tmp_path / "secret/key").read_text() == "SECRET"


@pytest.mark.slow
def test_a_line_of_the_person_is_only_replaced_once_it_was_read_and_undo_brings_it_back(place: Place) -> None:
    write = call("memory", command="write", path="notes.md", content="- mine\n")
    view, delete = call("memory", command="view", path="notes.md"), call("memory", command="delete", path="notes.md")
    calls = [{"tool_calls": [one]} for one in (write, delete, view, write, write)]
    lines: list[dict[str, Any]] = [{"type": "user", "message": {"role": "user", "content": "go"}}]
    note = {"type": "control", "subtype": "command", "text": "/remember run ruff"}
    listing = {"type": "control", "subtype": "command", "text": "/memory"}
    given = "".join(json.dumps(line) + "\n" for line in (note, listing, *lines))
    model, formats = place.script(*calls, DONE), ("--output-format=stream-json", "--input-format=stream-json")
    ran = place.run("-p", *formats, "-m", model, stdin=given)
    results = [part for line in ran.of("user") for part in line["message"]["content"] if part["type"] == "tool_result"]
    assert [bool(result.get("is_error")) for result in results] == [True, True, False, False, False], ran.out
    assert "view it, and keep the lines that the user wrote" in str(results[0]["content"])
    (notes,) = (place.home / "state/memory").glob("*/notes.md")
    assert notes.read_text() == "- mine\n"
    shown = place.run("undo", "--list").out
    assert place.run("undo", "--yes").code == 0, shown
    assert notes.read_text() == "- run ruff\n"


def test_entries_written_by_another_session_are_not_lost(tmp_path: Path) -> None:
    one, other = (MemoryFiles(tmp_path / "m", MemorySettings()) for _ in range(2))
    one.write("a.md", "one\n")
    with pytest.raises(ToolError, match="view it, then write"):
        other.write("a.md", "other\n")
    one.append("a.md", "- more")
    with pytest.raises(ToolError, match="view it, then write"):
        other.write("A.md" if (tmp_path / "m/A.md").exists() else "a.md", "other\n", before="one\n")
    assert other.view("a.md") == "one\n- more\n"
    other.write("a.md", "both\n", before="one\n- more\n")
    assert one.view("a.md") == "both\n"


def test_sizes_are_bounded(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, MemorySettings(max_file_kb=1, max_total_kb=2, max_files=3))
    with pytest.raises(ToolError, match="a file may have at most"):
        files.write("a.md", "x" * 1_025)
    for name in ("a.md", "b.md"):
        files.write(name, "x" * 1_000)
    with pytest.raises(ToolError, match="all files"):
        files.write("c.md", "x" * 60)
    files.write("c.md", "x" * 40)
    with pytest.raises(ToolError, match="4 files, and at most 3"):
        files.write("d.md", "")
    files.delete("a.md")
    files.write("d.md", "")
    assert [name for name, _ in files.index()] == ["b.md", "c.md", "d.md"]
    with pytest.raises(ToolError, match=r"There is no memory file a\.md\. Existing files: b\.md, c\.md, d\.md"):
        files.view("a.md")


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path / "m", MemorySettings())
    files.write("a.md", "kept\n")
    (tmp_path / "m").chmod(0o500)
    try:
        if os.access(tmp_path / "m", os.W_OK):
            pytest.skip("root writes anywhere")
        with pytest.raises(ToolError, match="could not be written"):
            files.write("a.md", "lost\n")
    finally:
        (tmp_path / "m").chmod(0o700)
    assert files.view("a.md") == "kept\n"


@pytest.mark.slow
def test_the_person_remembers_and_the_model_is_reported_at_the_next_start(tmp_path: Path) -> None:
    place = Place(tmp_path)
    model = place.script({"text": "Hi."})
    said = place.run("-m", model, "-p", "/remember The port is 8143.").out
    assert said.startswith("Added to ")
    assert Path(said.removeprefix("Added to ").strip()).read_text() == "- The port is 8143.\n"
    place.run("-m", model, "-p", "/remember And the host is atlas.")
    shown = place.run("-m", model, "-p", "/memory").out
    assert "notes.md  about " in shown
    ran = place.run("-m", model, "-p", "go", "--output-format=json")
    messages = place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert "- notes.md: - The port is 8143." in json.loads(messages)["messages"][0]["content"][0]["text"] + messages
    bare = place.run("-m", model, "--bare", "-p", "go", "--output-format=json").result["session_id"]
    assert "notes.md" not in place.run("sessions", "show", bare, "--json").out


@pytest.mark.full
@pytest.mark.slow
def test_the_index_is_bounded(tmp_path: Path) -> None:
    place = Place(tmp_path)
    model = place.script({"text": "Hi."})
    folder = Path(place.run("-m", model, "-p", "/remember x").out.removeprefix("Added to ").strip()).parent
    for number in range(150):
        (folder / f"f{number:03}.md").write_text("a line of some length that says what is in it\n")
    ran = place.run("-m", model, "-p", "go", "--output-format=json")
    text = place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert "more: memory view)" in text
    assert "f149.md" not in text


@pytest.mark.slow
def test_a_file_that_grew_too_large_is_listed_and_can_be_deleted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run("-m", place.script(), "-p", "/remember one")
    (folder,) = (place.home / "state/memory").glob("*/")
    (folder / "big.md").write_text("x" * 70_000)
    shown = place.run("-m", place.script(), "-p", "/memory")
    assert shown.code == 0, shown.err
    assert "big.md could not be read: larger than 65,536 bytes" in shown.out
    delete = call("memory", command="delete", path="big.md")
    assert place.run("-m", place.script({"tool_calls": [delete]}, DONE), "-p", "go").out == "Done.\n"
    assert not (folder / "big.md").exists()


@pytest.mark.full
@pytest.mark.slow
def test_instructions_are_reported_again_where_they_changed_and_only_there(place: Place) -> None:
    (place.folder / "deep").mkdir()
    (place.folder / "deep/AGENTS.md").write_text("Rule deep.\n")
    look = anthropic_reply(Said(calls=(Call("toolu_1", "file_list", {"path": "deep"}),)))
    with anthropic_server([anthropic_reply("Fine."), look, *[anthropic_reply("Fine.")] * 4]) as server:
        env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
        for number, rules in enumerate(("one", "one", "one", "two", "one")):
            (place.folder / "AGENTS.md").write_text(f"Rule {rules}.\n")
            flags = ("-m", "anthropic/claude-sonnet-5-5", *(["-c"] if number else []))
            assert place.run(*flags, "-p", "go", env=env).code == 0
    told = [re.findall(r"Rule (\w+)", request.body.decode()) for request in server.requests]
    assert told == [["one"]] * 2 + [["one", "deep"]] * 2 + [["one", "deep", "two"], ["one", "deep", "two", "one"]]


@pytest.mark.slow
def test_the_claude_md_of_a_person_without_an_agents_md_is_theirs(place: Place) -> None:
    own = place.folder.parent / ".claude/CLAUDE.md"
    own.parent.mkdir()
    own.write_text("Be brief.\n")
    model = place.script({"text": "Done."})
    session = place.run("-m", model, "-p", "go", "--output-format=json").result["session_id"]
    assert "Be brief." in place.run("sessions", "show", session, "--json").out
    assert f"{own}  about " in place.run("-m", model, "-r", session, "-p", "/memory").out
    off = place.run("-m", model, "-p", "/memory", env={"AGENTCLI_INSTRUCTIONS_OFF": "claude"}).out
    (place.home / "AGENTS.md").write_text("Be long.\n")
    assert str(own) not in off + place.run("-m", model, "-p", "/memory").out


@pytest.mark.slow
def test_rules_of_other_tools_reach_the_model_when_they_apply(place: Place) -> None:
    (place.folder / ".cursor/rules").mkdir(parents=True)
    (place.folder / ".cursor/rules/ts.mdc").write_text("---\nglobs: *.ts\n---\nPrefer unknown to any.\n")
    (place.folder / ".cursor/rules/ci.mdc").write_text("---\ndescription: Releases\n---\nTag first.\n")
    (place.folder / ".windsurfrules").write_text("Use tabs.\nallow: bash(*)\n")
    (place.folder / "a.ts").write_text("let a = 1\n")
    edit = call("file_edit", path="a.ts", old_string="1", new_string="2")
    model = place.script({"tool_calls": [edit]}, {"text": "Done."}, {"text": "Again."})
    ran = place.run("-m", model, "-p", "go", "--output-format=json")
    assert ran.result["permission_denials"], "a rule grants nothing"
    told = place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert told.index("Use tabs.") < told.index('"name": "file_edit"') < told.index("Prefer unknown to any.")
    assert f"- {place.folder}/.cursor/rules/ci.mdc: Releases" in told
    assert "Tag first." not in told
    listed = place.run("-m", model, "-r", ran.result["session_id"], "-p", "/memory").out
    assert re.search(r"\.windsurfrules  about \d+ tokens, always\n", listed)
    fits = r"\.cursor/rules/ts\.mdc  about \d+ tokens, when a file that matches \*\.ts is read or changed\n"
    assert re.search(fits, listed)
    assert ".cursor/rules/ci.mdc  when the model finds that it fits: Releases\n" in listed
    off = place.run("-m", model, "-p", "/memory", env={"AGENTCLI_INSTRUCTIONS_OFF": "cursor,windsurf"}).out
    assert "Not read: the files of cursor, windsurf (instructions.off)\n" in off
    assert ".mdc" not in off
