"""A conversation of Claude Code or Codex goes on here: each API takes it, and nothing in it runs again."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, Ran
from tests.conformance.replies import anthropic_reply, chat_reply, responses_reply
from tests.conformance.servers import LoopbackServer, anthropic_server, chat_server, responses_server

pytestmark = pytest.mark.slow  # each test starts the program

TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CLAUDE_ID = "5f0c2b9e-1111-4222-8333-444455556666"
CODEX_ID = "019a2d7a-41c4-78b1-b7cc-a45d62a89cd5"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def claude_lines(cwd: Path) -> list[dict[str, Any]]:
    """Calls that ran together, a call of a tool without a counterpart, thinking, a subagent, another branch."""
    common = {"sessionId": CLAUDE_ID, "cwd": str(cwd), "isSidechain": False, "version": "2.1.40"}

    def user(id: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
        message = {"role": "user", "content": content}
        return {"type": "user", "uuid": id, "parentUuid": parent, "message": message, **common, **more}

    def reply(id: str, parent: str, message_id: str, block: dict[str, Any]) -> dict[str, Any]:
        message = {"id": message_id, "role": "assistant", "model": "claude-sonnet-5-5", "content": [block]}
        return {"type": "assistant", "uuid": id, "parentUuid": parent, "message": message, **common}

    def use(id: str, name: str, **input: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": name, "input": input}

    def result(id: str, content: Any, **more: Any) -> list[dict[str, Any]]:
        return [{"type": "tool_result", "tool_use_id": id, "content": content, **more}]

    touch = f"touch {cwd}/ran-again; echo {TOKEN}"
    return [
        {"type": "summary", "summary": "A title", "leafUuid": "x"},
        {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
        user("u0", None, "<command-name>/clear</command-name>"),
        user("u1", "u0", [{"type": "text", "text": "What is in a.py and b.png?"}, IMAGE]),
        reply("a1", "u1", "m1", {"type": "thinking", "thinking": "Both.", "signature": "EqoBCkgIARAB"}),
        reply("a2", "a1", "m1", use("toolu_1", "Read", file_path="a.py")),
        reply("a3", "a2", "m1", use("toolu_2", "Read", file_path="b.png")),
        user("r1", "a2", result("toolu_1", "1\tprint(1)")),  # beside the branch
        user("r2", "a3", result("toolu_2", [IMAGE])),
        reply("old", "r2", "m2", {"type": "text", "text": "A branch that was left."}),
        reply("a4", "r2", "m3", {"type": "text", "text": "Now I run it."}),
        reply("a5", "a4", "m3", use("toolu_3", "Bash", command=touch, timeout=5000)),
        {**user("s1", None, "Of a subagent."), "isSidechain": True},
        user("r3", "a5", result("toolu_3", f"key {TOKEN}", is_error=True)),
        reply("a6", "r3", "m4", use("toolu_4", "AskUserQuestion", questions=["Which?"], **{TOKEN: 1})),
        user("r4", "a6", result("toolu_4", "The red one.")),
        reply("a7", "r4", "m5", use("toolu_5", "Bash", command=f"touch {cwd}/ran-again")),  # it ended here
    ]


def codex_lines(cwd: Path) -> list[dict[str, Any]]:
    def item(type: str, **fields: Any) -> dict[str, Any]:
        return {"timestamp": "2026-10-29T00:59:38.317Z", "type": "response_item", "payload": {"type": type, **fields}}

    def said(role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        return item("message", role=role, content=[{"type": kind, "text": text}])

    shell = json.dumps({"command": ["bash", "-lc", f"touch {cwd}/ran-again; ls"], "workdir": str(cwd)})
    return [
        {"type": "session_meta", "payload": {"id": CODEX_ID, "cwd": str(cwd), "model_provider": "openai"}},
        said("developer", "Be brief."),
        said("user", f"<environment_context><cwd>{cwd}</cwd></environment_context>"),
        {"type": "turn_context", "payload": {"cwd": str(cwd), "model": "gpt-5.3-codex"}},
        said("user", "List it and write hello.txt."),
        {"type": "event_msg", "payload": {"type": "user_message", "message": "List it and write hello.txt."}},
        item("reasoning", summary=[{"type": "summary_text", "text": "First a look."}], encrypted_content="gEncrypted"),
        item("function_call", name="shell", arguments=shell, call_id="call_1"),
        item("function_call_output", call_id="call_1", output=json.dumps({"output": "a.py\n", "metadata": {}})),
        item("custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="call_2"),
        item("custom_tool_call_output", call_id="call_2", output="Success."),
        said("assistant", "Done."),
    ]


def write(file: Path, lines: list[dict[str, Any]], *, ends: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + ends)
    return file


@pytest.fixture
def claude(place: Place) -> Path:
    folder = re.sub(r"[^A-Za-z0-9]", "-", str(place.folder))
    file = Path(place.environment["HOME"], ".claude/projects", folder, f"{CLAUDE_ID}.jsonl")
    return write(file, claude_lines(place.folder), ends='{"type":"assistant","message":{"cont')


@pytest.fixture
def codex(place: Place) -> Path:
    file = Path(place.environment["HOME"], f".codex/sessions/2026/10/29/rollout-2026-10-29T00-59-38-{CODEX_ID}.jsonl")
    return write(file, codex_lines(place.folder))


def ask(place: Place, model: str, name: str, env: dict[str, str]) -> Ran:
    ran = place.run("-m", model, "-r", name, "-p", "Go on.", "--output-format=json", env=env)
    assert (ran.code, ran.result["result"]) == (0, "I go on."), ran.err
    assert not (place.folder / "ran-again").exists(), "nothing runs again"
    return ran


def texts(server: LoopbackServer) -> str:
    """The only request. The server has refused one that its API does not take."""
    (request,) = server.requests
    return json.dumps(request.json, ensure_ascii=False)


@pytest.mark.parametrize("name", [f"claude:{CLAUDE_ID}", "claude:5f0c", "claude:", f"codex:{CODEX_ID}", "codex:019a"])
def test_each_api_takes_a_conversation_of_another_tool(place: Place, claude: Path, codex: Path, name: str) -> None:
    with anthropic_server([anthropic_reply("I go on.")]) as server:
        env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-1"}
        ask(place, "anthropic/claude-sonnet-5-5", name, env)
        sent = [texts(server)]
    with chat_server([chat_reply("I go on.")]) as server:
        place.home.mkdir(exist_ok=True)
        (place.home / "config.toml").write_text(f'[providers.work]\nbase_url = "{server.url}"\n')
        ask(place, "work/some-model", name, {})
        sent.append(texts(server))
    with responses_server([responses_reply("I go on.")]) as server:
        ask(place, "openai/gpt-5.3-codex", name, {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-1"})
        sent.append(texts(server))
    for text in sent:
        assert TOKEN not in text
        assert ("EqoBCkgIARAB" in text, "gEncrypted" in text) == (False, False)
        assert text.index("hello.txt" if "codex" in name else "b.png") < text.index("Go on.")


def test_what_came_over_is_stored_and_reported(place: Place, claude: Path) -> None:
    script = place.script({"text": "I go on."})
    ran = ask(place, script, "claude:", {})
    assert (
        "5 messages, 4 calls with results, 1 call as text. Not imported: other branches and what came before a "
        "compaction, subagents, 1 damaged line, 3 secrets "
    ) in " ".join(ran.err.split()).replace("agentcli: ", ""), ran.err
    shown = json.loads(place.run("sessions", "show", ran.result["session_id"], "--json").out)
    blocks = [block for message in shown["messages"] for block in message["content"]]
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    assert [name for name, _ in calls] == ["file_read", "file_read", "bash", "bash"]
    assert calls[0][1] == {"path": "a.py"}
    assert calls[2][1]["timeout_ms"] == 5000
    results = [block for block in blocks if block["type"] == "tool_result"]
    assert [block.get("is_error", False) for block in results] == [False, False, True, True]
    assert results[1]["content"][0]["type"] == "image"
    assert "has no result" in json.dumps(results[3])
    prose = json.dumps(shown["messages"])
    assert "you made this call, whose result follows: AskUserQuestion" in prose
    assert "The red one." in prose
    assert ("A branch that was left." in prose, "Of a subagent." in prose, TOKEN in prose) == (False, False, False)
    again = place.run("-m", script, "-r", ran.result["session_id"], "-p", "More.")
    assert (again.code, again.out) == (0, "I go on.\n")


def test_a_codex_conversation_continues_from_its_compaction(place: Place, codex: Path) -> None:
    carried = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "The short story."}]}
    compacted = {"type": "compacted", "payload": {"message": "", "replacement_history": [carried]}}
    lines = [*codex_lines(place.folder), compacted, codex_lines(place.folder)[-1]]
    imported = place.run("sessions", "import", str(write(place.folder / "x.jsonl", lines)), "--json")
    answer = json.loads(imported.out)
    assert "what came before a compaction" in answer["report"]
    shown = place.run("sessions", "show", answer["session_id"]).out
    assert "The short story." in shown
    assert "hello.txt" not in shown
    assert json.loads(place.run("usage", "--json").out)["total"]["requests"] == 0  # of ours


def test_a_conversation_that_names_no_model_goes_on_with_the_usual_one(place: Place) -> None:
    lines = [line for line in codex_lines(place.folder) if line["type"] != "turn_context"]
    imported = place.run("sessions", "import", str(write(place.folder / "x.jsonl", lines)), "--json")
    id = json.loads(imported.out)["session_id"]
    assert place.run("-m", place.script({"text": "Mine."}), "-r", id, "-p", "Go on.").out == "Mine.\n"


def test_its_own_model_answers_where_it_can_else_the_usual_one(place: Place, codex: Path) -> None:
    usual = place.script({"text": "The usual one."})
    env = {"AGENTCLI_MODEL": usual}
    assert place.run("-r", "codex:019a", "-p", "Go on.", env=env).out == "The usual one.\n"
    with responses_server([responses_reply("Its own.")]) as server:
        env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-1"}
        assert place.run("-r", "codex:019a", "-p", "Go on.", env=env).out == "Its own.\n"


PROBLEMS = [
    (("-r", "claude:none", "-p", "x"), "There is no conversation none in"),
    (("-r", "codex:", "-p", "x"), "Name the conversation: codex:ID"),
    (("-r", "claude:", "-p", "x", "-C", ".."), "There is no conversation of this directory in"),
    (("-r", "claude:", "-p", "x", "--no-session"), "--no-session stores nothing"),
    (("sessions", "import", "gone.jsonl"), "Could not read gone.jsonl: No such file"),
    (("sessions", "import", "empty.jsonl"), "empty.jsonl holds no conversation of Claude Code or Codex"),
]


@pytest.mark.parametrize(("arguments", "problem"), PROBLEMS)
def test_what_cannot_be_continued_is_explained(
    place: Place, claude: Path, codex: Path, arguments: tuple[str, ...], problem: str
) -> None:
    (place.folder / "empty.jsonl").write_text('[1]\n"x"\n{"type":"user","uuid":"u","message":3}\n{"a":\n')
    ran = place.run("-m", place.script(), *arguments) if arguments[0] == "-r" else place.run(*arguments)
    assert ran.code in (1, 2)
    assert problem in " ".join(ran.err.split())


def test_an_id_that_several_conversations_share_is_ambiguous(place: Place, claude: Path) -> None:
    os.link(claude, claude.with_name(f"{CLAUDE_ID[:-1]}7.jsonl"))
    assert "Several conversations begin with 5f0" in place.run("-r", "claude:5f0", "-p", "x").err
