"""`agentcli acp`: an editor begins sessions, is told what they do, and answers what they ask."""

from __future__ import annotations

import base64
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcli.version import __version__
from tests.app.editor import FILES, FORMS, NOTICES, Answer, Editor, Refused, choosing, edit
from tests.app.running import Place, call, wait_until
from tests.processes import command_lines

DONE = {"text": "done"}
WRITE = {"tool_calls": [call("file_write", path="made", content="x\n")]}
SLOW = {"text": "one two three four five six", "chunk": 4, "delay_ms": 3_000}
ECHO = {"text": "So: {{last_result}}"}
PLAN = {"text": "# Plan\n\n1. Write the file.\n"}
slow = pytest.mark.slow

Open = Callable[..., Editor]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    (made.folder / "a.py").write_text('print("hi")\nprint("bye")\n')
    return made


@pytest.fixture
def open_editor(place: Place) -> Iterator[Open]:
    opened: list[Editor] = []

    def open_on(*replies: dict[str, Any], flags: tuple[str, ...] = (), **capabilities: Any) -> Editor:
        opened.append(edit(place, *replies, flags=flags, **capabilities))
        return opened[-1]

    yield open_on
    for editor in opened:
        with editor:
            pass


@contextmanager
def bare(place: Place) -> Iterator[Editor]:
    """An editor that has said nothing yet."""
    with Editor(place.process("acp", "-m", place.script(DONE), stdin=True)) as editor:
        yield editor


def options(editor: Editor, id: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in editor.updates("config_option_update")[-1]["configOptions"] if one["id"] == id
    )
    return found


def stored(place: Place, editor: Editor) -> str:
    return place.run("sessions", "show", editor.session, "--json").out


# A prompt


def test_a_prompt_is_answered_with_everything_that_happens_on_the_way(place: Place, open_editor: Open) -> None:
    replies = (
        {
            "thinking": "Hm, a.py.",
            "text": "Let me look.",
            "chunk": 5,
            "tool_calls": [call("file_read", path="a.py", offset=2)],
        },
        {"tool_calls": [call("todo", items=[{"content": "tell", "status": "in_progress"}])]},
        {"text": "It says bye.", "chunk": 5},
    )
    editor = open_editor(*replies)
    ended = editor.prompt("what does a.py say?")
    assert ended["stopReason"] == "end_turn"
    assert editor.text() == "Let me look.It says bye."
    assert editor.text("agent_thought_chunk") == "Hm, a.py."
    read, todo = editor.calls
    assert (read["title"], read["kind"], read["status"]) == ("Read a.py", "read", "completed")
    assert read["locations"] == [{"path": str(place.folder / "a.py"), "line": 2}]
    assert read["rawInput"] == {"path": "a.py", "offset": 2}
    assert 'print("bye")' in read["content"][0]["content"]["text"]
    assert todo["kind"] == "think"
    assert editor.updates("plan")[0]["entries"] == [{"content": "tell", "priority": "medium", "status": "in_progress"}]
    assert editor.updates("session_info_update")[0]["title"] == "what does a.py say?"
    used = editor.updates("usage_update")[-1]
    assert 0 < used["used"] < used["size"]
    assert used["cost"]["currency"] == "USD"
    assert editor.messages[-1]["result"] == ended  # nothing follows the answer
    assert not editor.updates("user_message_chunk")  # the editor knows what it said
    statuses = [update.get("status") for update in editor.updates() if update.get("toolCallId") == read["toolCallId"]]
    assert statuses == ["pending", "in_progress", "completed"]
    messages = {update["messageId"] for update in editor.updates("agent_message_chunk")}
    assert len(messages) == 2  # one for each reply
    ran = editor.ended()
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("version", [1, 2, 99])
@slow
def test_the_version_is_negotiated(place: Place, version: int) -> None:
    with bare(place) as editor:
        answer = editor.request("initialize", protocolVersion=version, clientInfo={"name": "x", "version": "1"})
        assert answer["protocolVersion"] == 1
        assert answer["agentInfo"]["name"] == "agentcli"
        assert answer["agentCapabilities"]["loadSession"]
        assert answer["authMethods"] == []


@slow
def test_what_a_prompt_brings_reaches_the_model(place: Place, open_editor: Open) -> None:
    picture = base64.b64encode((Path(__file__).parents[2] / "tests/app/editor.py").read_bytes()).decode()
    editor = open_editor(DONE)
    place.folder.joinpath("b c.txt").write_text("one\ntwo\nthree\n")
    editor.prompt(
        "See",
        {"type": "resource_link", "name": "a.py", "uri": (place.folder / "a.py").as_uri()},
        {"type": "resource_link", "name": "b", "uri": f"{(place.folder / 'b c.txt').as_uri()}#L2:3"},
        {"type": "resource_link", "name": "page", "uri": "https://example.com/page"},
        {"type": "resource_link", "name": "odd", "uri": "http://[odd"},
        {"type": "text", "text": "and"},
        {"type": "text", "text": "this:"},
        {"type": "resource", "resource": {"uri": "file:///elsewhere/u.txt", "text": "unsaved words"}},
        {"type": "resource", "resource": {"uri": "mem:x", "blob": "AAEC", "mimeType": "application/zip"}},
        {"type": "image", "mimeType": "image/png", "data": picture},
    )
    content = json.loads(stored(place, editor))["messages"][0]["content"]
    text = "\n".join(block.get("text", "") for block in content)
    first = next(block["text"] for block in content if block.get("text", "").startswith("See"))
    links = "See @a.py @b c.txt:2-3 [page](https://example.com/page) [odd](http://[odd)"
    assert first == f"{links} and\nthis: @/elsewhere/u.txt @mem:x "
    assert 'print("hi")' in text
    assert "two\n3\tthree" in text
    assert "1\tone" not in text
    assert '<file path="/elsewhere/u.txt">\nunsaved words\n</file>' in text
    assert "[application/zip, about 3 bytes: not shown]" in text
    assert [block["source"]["data"] for block in content if block["type"] == "image"] == [picture]


def test_the_registry_entry_names_this_version() -> None:
    folder = Path(__file__).parents[2] / "docs/acp-registry/agentcli"
    entry = json.loads((folder / "agent.json").read_text())
    assert (entry["id"], entry["version"]) == (folder.name, __version__)
    assert entry["distribution"]["uvx"] == {"package": f"agentcli=={__version__}", "args": ["acp"]}


# Permissions


def test_an_edit_waits_for_the_editors_yes(place: Place, open_editor: Open) -> None:
    change = call("file_edit", path="a.py", old_string='"bye"', new_string='"later"')
    editor = open_editor({"tool_calls": [change]}, DONE)
    prompt = editor.begin_prompt("change it")
    asked = editor.asked("session/request_permission")
    params = asked["params"]
    assert params["sessionId"] == editor.session
    assert params["toolCall"]["kind"] == "edit"
    assert params["toolCall"]["status"] == "pending"
    diff = next(one for one in params["toolCall"]["content"] if one["type"] == "diff")
    assert diff["path"] == str(place.folder / "a.py")
    assert diff["oldText"] == 'print("hi")\nprint("bye")\n'
    assert diff["newText"] == 'print("hi")\nprint("later")\n'
    kinds = [option["kind"] for option in params["options"]]
    assert (kinds[0], kinds[-1]) == ("allow_once", "reject_once")
    assert "allow_always" in kinds
    assert "later" not in (place.folder / "a.py").read_text()
    editor.choose(asked, "allow_once")
    assert editor.end(prompt)["stopReason"] == "end_turn"
    assert "later" in (place.folder / "a.py").read_text()
    made = editor.call(params["toolCall"]["toolCallId"])
    assert (made["status"], made["content"]) == ("completed", [diff])
    assert made["locations"] == [{"path": str(place.folder / "a.py"), "line": 1}]


@pytest.mark.parametrize(
    ("answer", "heard"),
    [
        (choosing("reject_once"), "declined this call"),
        (lambda params: Refused(-32603, "no window"), "no one can approve it any more"),
    ],
)
@slow
def test_the_model_reads_that_a_call_was_declined_or_could_not_be_asked(
    place: Place, open_editor: Open, answer: Answer, heard: str
) -> None:
    editor = open_editor(WRITE, ECHO)
    editor.answers["session/request_permission"] = answer
    assert editor.prompt("write")["stopReason"] == "end_turn"
    assert heard in editor.text()
    assert editor.calls[0]["status"] == "failed"
    assert not (place.folder / "made").exists()


@slow
def test_an_approval_for_the_session_asks_no_more_and_may_change_the_mode(open_editor: Open) -> None:
    again = {"tool_calls": [call("file_write", path="more", content="y\n")]}
    editor = open_editor(WRITE, again, DONE)
    editor.answers["session/request_permission"] = choosing("mode:acceptEdits")
    editor.prompt("write")
    assert len([one for one in editor.messages if one.get("method") == "session/request_permission"]) == 1
    assert editor.updates("current_mode_update")[0]["currentModeId"] == "acceptEdits"
    assert options(editor, "mode")["currentValue"] == "acceptEdits"
    diff = editor.calls[0]["content"][0]
    assert (diff["oldText"], diff["newText"]) == (None, "x\n")  # of a new file


@slow
def test_a_permanent_approval_holds_in_later_sessions(place: Place, open_editor: Open) -> None:
    push = {"tool_calls": [call("bash", command="git push origin main")]}
    editor = open_editor(push, DONE, push, DONE)
    editor.answers["session/request_permission"] = choosing("always")
    editor.prompt("push")
    editor.open(place.folder)
    editor.prompt("push")
    assert len([one for one in editor.messages if one.get("method") == "session/request_permission"]) == 1


@slow
def test_nothing_of_a_request_is_hidden_from_the_person(place: Place, open_editor: Open) -> None:
    command = "curl -d " + "x" * 9_000 + " https://example.com\u202e; sh deploy.sh"
    (place.folder / "sub").mkdir()
    settings = place.folder.parent / "settings.json"
    settings.write_text('{"permissions": {"try": false}}')
    replies = ({"tool_calls": [call("bash", command=command, cwd="sub")]},)
    hidden = {"tool_calls": [call("file_write", path="new.sh", content="echo a\u202e\u200bb\n")]}
    editor = open_editor(*replies, hidden, DONE, flags=("--settings", str(settings)))
    prompt = editor.begin_prompt("go")
    asked = editor.asked("session/request_permission")
    told = "\n".join(one["content"]["text"] for one in asked["params"]["toolCall"]["content"])
    assert "```sh\n" + command.replace("\u202e", "\\u202e") + "\n```" in told
    assert "runs in sub" in told
    assert "example.com" in told.partition("```")[0]
    assert asked["params"]["toolCall"]["kind"] == "execute"
    editor.choose(asked, "reject_once")
    asked = editor.asked("session/request_permission", 1)
    diff, escaped = asked["params"]["toolCall"]["content"][-2:]
    assert diff["type"] == "diff"
    assert "+echo a\\u202e\\u200bb" in escaped["content"]["text"]
    editor.choose(asked, "reject_once")
    editor.end(prompt)


@slow
def test_changes_of_a_dry_run_are_asked_about(place: Place, open_editor: Open) -> None:
    editor = open_editor({"tool_calls": [call("bash", command="sed -i s/hi/ho/ a.py && cp a.py c.py")]}, DONE)
    prompt = editor.begin_prompt("go")
    asked = editor.asked("session/request_permission")
    diffs = [one for one in asked["params"]["toolCall"]["content"] if one["type"] == "diff"]
    assert {Path(diff["path"]).name for diff in diffs} == {"a.py", "c.py"}
    assert 'print("ho")' in diffs[0]["newText"]
    editor.choose(asked, "once")
    editor.end(prompt)
    assert (place.folder / "c.py").exists()


# Questions


@pytest.mark.parametrize(
    ("filled", "heard"),
    [
        ({"action": "accept", "content": {"choice": "blue"}}, "So: blue"),
        ({"action": "accept", "content": {"choice": "blue", "words": "green"}}, "So: green"),
        ({"action": "decline"}, "did not answer"),
        ({"action": "cancel"}, "did not answer"),
    ],
)
@slow
def test_a_question_is_a_form(open_editor: Open, filled: dict[str, Any], heard: str) -> None:
    editor = open_editor({"tool_calls": [call("ask_user", question="Which?", options=["red", "blue"])]}, ECHO, **FORMS)
    prompt = editor.begin_prompt("go")
    asked = editor.asked("elicitation/create")
    assert asked["params"]["message"] == "Which?"
    assert asked["params"]["toolCallId"] == editor.calls[0]["toolCallId"]
    assert asked["params"]["requestedSchema"]["properties"]["choice"]["enum"] == ["red", "blue"]
    editor.answer(asked, filled)
    editor.end(prompt)
    assert heard in editor.text()


@slow
def test_without_forms_a_question_has_its_options_or_nobody_to_ask(open_editor: Open) -> None:
    options = {"tool_calls": [call("ask_user", question="Which?", options=["red", "blue"])]}
    editor = open_editor(options, ECHO, {"tool_calls": [call("ask_user", question="Why?")]}, ECHO)
    prompt = editor.begin_prompt("go")
    asked = editor.asked("session/request_permission")
    assert [option["name"] for option in asked["params"]["options"]] == ["red", "blue", "Skip this question"]
    editor.choose(asked, "answer:1")
    editor.end(prompt)
    assert editor.text() == "So: blue"
    editor.prompt("and?")
    assert "No one can answer here" in editor.text()


@slow
def test_a_plan_is_accepted_by_its_options(place: Place, open_editor: Open) -> None:
    editor = open_editor(PLAN, WRITE, DONE, flags=("--permission-mode", "plan"))
    prompt = editor.begin_prompt("plan it")
    asked = editor.asked("session/request_permission")
    assert asked["params"]["toolCall"]["kind"] == "switch_mode"
    editor.choose(asked, "plan:acceptEdits")
    editor.end(prompt)
    assert (place.folder / "made").exists()
    assert editor.updates("current_mode_update")[-1]["currentModeId"] == "acceptEdits"


@slow
def test_a_plan_that_is_not_accepted_is_followed_by_what_to_change(place: Place, open_editor: Open) -> None:
    editor = open_editor(PLAN, PLAN, DONE, flags=("--permission-mode", "plan"), **FORMS)
    prompt = editor.begin_prompt("plan it")
    editor.choose(editor.asked("session/request_permission"), "not-yet")
    editor.end(prompt)
    prompt = editor.begin_prompt("Think of tests.")
    editor.choose(editor.asked("session/request_permission", 1), "plan:default")
    editor.end(prompt)
    assert "Think of tests." in stored(place, editor)
    assert editor.text().endswith("done")


# Cancelling


@pytest.mark.full
@pytest.mark.parametrize("by_id", [False, True])
@slow
def test_a_cancelled_prompt_is_answered_so_after_all_updates(open_editor: Open, by_id: bool) -> None:
    editor = open_editor(SLOW, DONE)
    prompt = editor.begin_prompt("go")
    editor.wait_for_update("agent_message_chunk")
    if by_id:
        editor.notify("$/cancel_request", requestId=prompt)
    else:
        editor.cancel()
    assert editor.end(prompt)["stopReason"] == "cancelled"
    assert editor.messages[-1]["id"] == prompt
    assert editor.prompt("again")["stopReason"] == "end_turn"


@slow
def test_a_cancelled_command_leaves_no_process(open_editor: Open) -> None:
    sleep = {"tool_calls": [call("bash", command="echo begun; sleep 99.5")]}
    editor = open_editor(sleep, DONE, flags=("--permission-mode", "auto"))
    prompt = editor.begin_prompt("go")
    editor.wait_for(lambda line: "begun" in json.dumps(line.get("params", {}).get("update", {}).get("content", "")))
    editor.cancel()
    assert editor.end(prompt)["stopReason"] == "cancelled"
    assert editor.calls[0]["status"] == "failed"
    wait_until(lambda: "sleep 99.5" not in command_lines(), "the end of the command")


@slow
def test_a_prompt_is_cancelled_while_it_asks(place: Place, open_editor: Open) -> None:
    editor = open_editor(WRITE, WRITE, DONE)
    prompt = editor.begin_prompt("go")
    asked = editor.asked("session/request_permission")
    editor.cancel()
    editor.answer(asked, {"outcome": {"outcome": "cancelled"}})
    assert editor.end(prompt)["stopReason"] == "cancelled"
    prompt = editor.begin_prompt("go")
    asked = editor.asked("session/request_permission", 1)
    editor.cancel()  # and the editor forgets to answer
    assert editor.end(prompt)["stopReason"] == "cancelled"
    taken_back = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": asked["id"]}}
    editor.wait_for(lambda line: line == taken_back)
    assert not (place.folder / "made").exists()


# What goes wrong


def test_bad_input_is_answered_with_the_right_codes(place: Place) -> None:
    with bare(place) as editor:
        with pytest.raises(Refused) as early:
            editor.request("session/new", cwd="/", mcpServers=[])
        assert early.value.code == -32600
        editor.introduce()
        editor.open(place.folder)
        session, text = editor.session, {"type": "text", "text": "x"}
        no_image = {"type": "image", "data": "?", "mimeType": "image/png"}
        for method, params, code, words in (
            ("session/nothing", {}, -32601, "session/nothing"),
            ("initialize", {"protocolVersion": "1"}, -32602, "protocolVersion"),
            ("session/new", {"mcpServers": []}, -32602, "cwd"),
            ("session/new", {"cwd": "project", "mcpServers": []}, -32602, "absolute"),
            ("session/new", {"cwd": "/not/there", "mcpServers": []}, -32602, "no such folder"),
            ("session/new", {"cwd": "/", "mcpServers": [{"command": "x"}]}, -32602, "name"),
            ("session/new", {"cwd": "/", "mcpServers": [], "additionalDirectories": ["x"]}, -32602, "absolute"),
            ("session/prompt", {"sessionId": session, "prompt": []}, -32602, "empty"),
            ("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": " "}]}, -32602, "empty"),
            ("session/prompt", {"sessionId": session, "prompt": [{"type": "audio", "data": ""}]}, -32602, "audio"),
            ("session/prompt", {"sessionId": session, "prompt": "hi"}, -32602, "prompt"),
            ("session/prompt", {"sessionId": session, "prompt": [no_image]}, -32602, "base64"),
            ("session/prompt", {"sessionId": "nothing", "prompt": [text]}, -32002, "session/load"),
            ("session/load", {"sessionId": "nothing", "cwd": "/", "mcpServers": []}, -32002, "nothing"),
            ("session/load", {"sessionId": session[:8], "cwd": "/", "mcpServers": []}, -32002, session[:8]),
            ("session/close", {"sessionId": "nothing"}, -32002, "nothing"),
            ("session/set_mode", {"sessionId": session, "modeId": "loose"}, -32602, "bypassPermissions"),
            ("session/set_config_option", {"sessionId": session, "configId": "x", "value": "y"}, -32602, "mode, model"),
            ("session/set_config_option", {"sessionId": session, "configId": "model", "value": "x"}, -32602, "x"),
            ("session/set_config_option", {"sessionId": session, "configId": "mode", "value": True}, -32602, "$.value"),
            ("authenticate", {"methodId": "x"}, -32602, "agentcli login"),
            ("logout", {}, -32601, "logout"),
        ):
            with pytest.raises(Refused) as refused:
                editor.request(method, **params)
            assert (refused.value.code, words in refused.value.message) == (code, True), (method, params, refused.value)
        yes = b'{"jsonrpc":"2.0","id":true,"method":"session/list"}'  # true is no id, although it is 1 in Python
        for line in (b"{nonsense", b'\xff\xfe{"a":1}', b'"text"', b"[]", b'{"jsonrpc":"2.0"}', yes):
            editor.send_bytes(line)
        editor.send_bytes(b'{"id":77,"method":"initialize"}')
        editor.send('{"jsonrpc":"2.0","id":88,"method":"session/list","params":[]}')
        assert editor.wait_for(lambda line: line.get("id") == 88)["error"]["code"] == -32602
        codes = [one["error"]["code"] for one in editor.messages if "error" in one and one["id"] is None]
        assert codes == [-32700, -32700, -32600, -32600, -32600, -32600]
        assert editor.wait_for(lambda line: line.get("id") == 77)["error"]["code"] == -32600
        editor.notify("session/unheard", x=1)
        editor.notify("session/cancel", sessionId="nothing")
        editor.notify("$/cancel_request", requestId={"id": 1})
        assert editor.prompt("still there?")["stopReason"] == "end_turn"
        ran = editor.ended()
        assert (ran.code, ran.err) == (0, "")


@slow
def test_one_prompt_at_a_time(open_editor: Open) -> None:
    editor = open_editor(SLOW)
    prompt = editor.begin_prompt("go")
    with pytest.raises(Refused, match="session/cancel"):
        editor.prompt("more")
    editor.cancel()
    editor.end(prompt)


@slow
def test_a_failure_of_the_provider_is_an_error_and_the_session_continues(open_editor: Open) -> None:
    editor = open_editor({"error": {"kind": "bad_request"}}, {"error": {"kind": "auth"}}, DONE)
    with pytest.raises(Refused) as refused:
        editor.prompt("go")
    assert (refused.value.code, refused.value.data["errorType"]) == (-32603, "BadRequest")
    with pytest.raises(Refused) as refused:
        editor.prompt("go")
    assert refused.value.code == -32000
    assert editor.prompt("go")["stopReason"] == "end_turn"


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        (({"text": "No.", "stop_reason": "refusal"},), "refusal"),
        (
            ({"tool_calls": [call("think", thought="a")]}, {"tool_calls": [call("think", thought="b")]}),
            "max_turn_requests",
        ),
        (({"text": "cut", "stop_reason": "max_tokens"},) * 5, "max_tokens"),
    ],
)
@slow
def test_stop_reasons(open_editor: Open, replies: tuple[dict[str, Any], ...], reason: str) -> None:
    editor = open_editor(*replies, flags=("--max-turns", "2" if reason == "max_turn_requests" else "10"))
    assert editor.prompt("go")["stopReason"] == reason
    if reason == "refusal":
        assert (editor.text(), len(editor.notices)) == ("No.", 1)  # a notice is not among the model's words
        assert editor.notices[0].startswith("error\n")
        assert "refused to answer" in editor.notices[0]
        told = editor.updates("tool_call")[0]  # as a call, because this editor knows no notices
        assert (told["kind"], told["status"]) == ("other", "completed")


@slow
def test_without_a_model_the_editor_is_reported_how_to_get_one(place: Place) -> None:
    with Editor(place.process("acp", stdin=True)) as editor:
        for announced in ({"auth": {"terminal": True}}, {"_meta": {"terminal-auth": True}}):
            (method,) = editor.introduce(**announced)["authMethods"]
            assert (method["type"], method["args"]) == ("terminal", ["--login"])
        for request in (
            ("session/new", {"cwd": str(place.folder), "mcpServers": []}),
            ("authenticate", {"methodId": "login"}),
        ):
            with pytest.raises(Refused, match="agentcli login") as refused:
                editor.request(request[0], **request[1])
            assert refused.value.code == -32000
        place.run("login", "anthropic", "--untried", stdin="sk-ant-test\n")
        assert editor.request("authenticate", methodId="login") == {}  # by a client that does not reconnect
        editor.open(place.folder)


@slow
def test_without_a_key_for_any_model_no_session_begins(place: Place) -> None:
    with Editor(place.process("acp", "-m", "anthropic/claude-sonnet-5-5", stdin=True)) as editor:
        editor.introduce()
        with pytest.raises(Refused, match="ANTHROPIC_API_KEY") as refused:
            editor.open(place.folder)
        assert refused.value.code == -32000


@slow
def test_what_was_asked_before_the_editor_closes_the_pipe_is_answered(place: Place) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    answer = json.loads(place.run("acp", stdin=json.dumps(asked) + "\n").out)
    assert answer["result"]["agentInfo"]["name"] == "agentcli"


# Sessions


@slow
def test_a_session_is_loaded_with_its_history_and_continues(place: Place, open_editor: Open) -> None:
    replies = ({"thinking": "Hm.", "text": "I look.", "tool_calls": [call("file_read", path="a.py")]}, DONE)
    first = open_editor(*replies)
    first.prompt("go", {"type": "resource_link", "name": "a", "uri": (place.folder / "a.py").as_uri()})
    first.ended()
    second = open_editor(DONE)
    second.session = first.session
    answer = second.request("session/load", sessionId=first.session, cwd=str(place.folder), mcpServers=[])
    assert answer["modes"]["currentModeId"] == "default"
    kinds = [update["sessionUpdate"] for update in second.updates()]
    said, thought, answer_chunk = "user_message_chunk", "agent_thought_chunk", "agent_message_chunk"
    assert kinds[:6] == [said, thought, answer_chunk, "tool_call", "tool_call_update", answer_chunk]
    assert second.text("user_message_chunk") == "go @a.py"
    assert second.text() == "I look.done"
    assert second.calls[0]["status"] == "completed"
    second.wait_for(
        lambda line: (
            line.get("params", {}).get("sessionId") == first.session
            and line["params"]["update"]["sessionUpdate"] == "available_commands_update"
        )
    )
    sent = second.messages
    answered = next(n for n, message in enumerate(sent) if message.get("result") == answer)
    after = [message["params"]["update"]["sessionUpdate"] for message in sent[answered + 1 :]]
    assert after == ["available_commands_update"]
    assert second.prompt("more")["stopReason"] == "end_turn"


@slow
def test_a_session_that_is_open_is_loaded_again_and_elsewhere_refused(place: Place, open_editor: Open) -> None:
    editor = open_editor({"text": "Seven."}, SLOW)
    editor.prompt("a number?")
    prompt = editor.begin_prompt("another?")
    editor.request("session/load", sessionId=editor.session, cwd=str(place.folder), mcpServers=[])
    assert editor.end(prompt)["stopReason"] == "cancelled"
    assert editor.text("user_message_chunk").startswith("a number?")
    other = open_editor(DONE)
    with pytest.raises(Refused, match="Close it there first"):
        other.request("session/resume", sessionId=editor.session, cwd=str(place.folder))


@slow
def test_a_resumed_session_is_not_reported_again(place: Place, open_editor: Open) -> None:
    first = open_editor({"text": "Seven."})
    first.prompt("a number?")
    first.request("session/close", sessionId=first.session)
    answer = first.request("session/resume", sessionId=first.session, cwd=str(place.folder))
    assert [option["id"] for option in answer["configOptions"]] == ["mode", "model", "effort"]
    assert first.text() == "Seven."
    assert not first.updates("user_message_chunk")


@slow
def test_a_fork_continues_a_copy_and_leaves_the_session_as_it_is(place: Place, open_editor: Open) -> None:
    editor = open_editor({"text": "Seven."}, ECHO, ECHO)
    editor.prompt("a number?")
    forked = editor.request("session/fork", sessionId=editor.session, cwd=str(place.folder), mcpServers=[])
    assert forked["sessionId"] != editor.session
    assert forked["modes"]["currentModeId"] == "default"
    assert not editor.text(session=forked["sessionId"])  # nothing is told again
    assert editor.prompt("in the copy", session=forked["sessionId"])["stopReason"] == "end_turn"
    assert "in the copy" not in stored(place, editor)
    assert editor.prompt("in the first")["stopReason"] == "end_turn"
    copy = place.run("sessions", "show", forked["sessionId"], "--json").out
    assert all(words in copy for words in ("a number?", "Seven.", "in the copy"))
    assert "in the first" not in copy


@slow
def test_only_a_whole_id_names_a_session(place: Place, open_editor: Open) -> None:
    editor = open_editor(DONE)
    editor.prompt("go")
    where = {"cwd": str(place.folder), "mcpServers": []}
    for part in ("", editor.session[:8]):
        assert editor.request("session/delete", sessionId=part) == {}
        for method in ("session/load", "session/resume", "session/fork"):
            with pytest.raises(Refused) as refused:
                editor.request(method, sessionId=part, **where)
            assert refused.value.code == -32002
    assert [one["sessionId"] for one in editor.request("session/list")["sessions"]] == [editor.session]
    assert editor.request("session/delete", sessionId=editor.session) == {}
    assert editor.request("session/list") == {"sessions": []}
    assert "Restored" in place.run("sessions", "restore", editor.session).out


@pytest.mark.full
@slow
def test_sessions_are_listed_and_deleted(place: Place, open_editor: Open, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    editor = open_editor(*[DONE] * 4)
    for number in range(3):
        editor.open(place.folder)
        editor.prompt(f"prompt number {number}")
        editor.request("session/close", sessionId=editor.session)
    editor.open(other)
    editor.prompt("elsewhere it is")
    page = editor.request("session/list", cwd=str(place.folder))
    assert [one["title"] for one in page["sessions"]] == ["prompt number 2", "prompt number 1", "prompt number 0"]
    assert page["sessions"][0]["cwd"] == str(place.folder)
    assert editor.request("session/list")["sessions"][0]["title"] == "elsewhere it is"
    gone = page["sessions"][0]["sessionId"]
    for _ in range(2):
        assert editor.request("session/delete", sessionId=gone) == {}
    assert gone not in json.dumps(editor.request("session/list", cwd=str(place.folder)))


@slow
def test_several_sessions_work_at_once(place: Place, open_editor: Open, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "AGENTS.md").write_text("Say so.\n")
    editor = open_editor(WRITE, {"text": "first"})
    one = editor.session
    first = editor.begin_prompt("write")
    asked = editor.asked("session/request_permission")
    two = editor.open(other)["sessionId"]
    editor.answers["session/request_permission"] = choosing("allow_once")
    assert editor.prompt("write", session=two)["stopReason"] == "end_turn"
    assert (other / "made").exists()
    assert not (place.folder / "made").exists()
    editor.choose(asked, "allow_once")
    assert editor.end(first)["stopReason"] == "end_turn"
    assert (place.folder / "made").exists()
    assert editor.text(session=one) == editor.text(session=two) == "first"


@slow
def test_many_sessions_do_not_wait_for_one_another(place: Place, open_editor: Open, tmp_path: Path) -> None:
    editor = open_editor(WRITE, DONE, flags=("--permission-mode", "auto"))
    folders = [tmp_path / f"folder-{number}" for number in range(20)]
    for folder in folders:
        folder.mkdir()
    sessions = [editor.open(folder)["sessionId"] for folder in folders]
    prompts = [editor.begin_prompt("write", session=session) for session in sessions]
    assert {editor.end(prompt)["stopReason"] for prompt in prompts} == {"end_turn"}
    assert all((folder / "made").exists() for folder in folders)


@pytest.mark.full
@slow
def test_closing_a_session_ends_its_prompt(open_editor: Open) -> None:
    editor = open_editor(SLOW)
    prompt = editor.begin_prompt("go")
    editor.wait_for_update("agent_message_chunk")
    assert editor.request("session/close", sessionId=editor.session) == {}
    assert editor.end(prompt)["stopReason"] == "cancelled"
    with pytest.raises(Refused, match="session/load"):
        editor.prompt("more")


@slow
def test_a_session_that_is_taken_over_is_closed(place: Place, open_editor: Open) -> None:
    editor = open_editor(DONE)
    editor.prompt("go")
    ran = place.run("-p", "more", "-r", editor.session, "--take-over", "-m", place.script({"text": "mine"}))
    assert ran.out == "mine\n"
    with pytest.raises(Refused, match="session/load"):
        editor.prompt("more")


# Options and commands


@slow
def test_options_are_set_by_the_editor_and_reported_to_it(open_editor: Open, place: Place) -> None:
    place.environment["OPENAI_API_KEY"] = "sk-test"
    editor = open_editor(DONE)
    opened = editor.open(place.folder)
    models = next(one for one in opened["configOptions"] if one["id"] == "model")
    assert models["currentValue"] == models["options"][0]["value"]
    assert any(one["value"].startswith("openai/") for one in models["options"])
    assert not any(one["value"].startswith("anthropic/") for one in models["options"])
    name = next(one["value"] for one in models["options"] if one["value"].startswith("openai/"))
    for id, value in (("mode", "plan"), ("effort", "high"), ("model", name)):
        answer = editor.request("session/set_config_option", sessionId=editor.session, configId=id, value=value)
        assert next(one for one in answer["configOptions"] if one["id"] == id)["currentValue"] == value
    assert editor.request("session/set_mode", sessionId=editor.session, modeId="acceptEdits") == {}
    editor.wait_for_update("current_mode_update", currentModeId="acceptEdits")
    assert options(editor, "mode")["currentValue"] == "acceptEdits"
    editor.prompt("/effort low")
    assert options(editor, "effort")["currentValue"] == "low"


@slow
def test_commands_are_listed_and_run(place: Place, open_editor: Open) -> None:
    commands = place.home / "commands"
    commands.mkdir(parents=True)
    (commands / "shout.md").write_text("---\ndescription: shouts\nargument-hint: WORDS\n---\nShout $ARGUMENTS\n")
    editor = open_editor({"text": "HEY"})
    listed = {one["name"]: one for one in editor.wait_for_update("available_commands_update")["availableCommands"]}
    assert listed["shout"] == {"name": "shout", "description": "shouts", "input": {"hint": "WORDS"}}
    assert "input" not in listed["context"]
    assert not {"quit", "clear", "resume"} & set(listed)
    assert editor.prompt("/shout hey")["stopReason"] == "end_turn"
    assert editor.text() == "HEY"
    assert "Shout hey" in stored(place, editor)
    assert editor.prompt("/permissions list")["stopReason"] == "end_turn"
    assert "```\n" in editor.text()
    editor.prompt("/contxt")
    assert "Did you mean /context?" in editor.text()
    editor.prompt("/clear")
    assert "in your editor" in editor.text()


@slow
def test_undo_asks_the_editor(place: Place, open_editor: Open) -> None:
    editor = open_editor(WRITE, DONE, flags=("--permission-mode", "acceptEdits"))
    editor.prompt("write")
    for option, is_there in (("no", True), ("yes", False)):
        editor.answers["session/request_permission"] = choosing(option)
        editor.prompt("/undo")
        assert (place.folder / "made").exists() is is_there
    asked = editor.asked("session/request_permission")["params"]["toolCall"]
    assert "made" in asked["content"][0]["content"]["text"]


@slow
def test_claims_are_reported_as_the_log_has_them(place: Place, open_editor: Open) -> None:
    (place.folder / "run_tests.sh").write_text("printf '1 failed, 2 passed in 0.10s\\n'; exit 1\n")
    tests = {"tool_calls": [call("bash", command="sh ./run_tests.sh")]}
    write = {"tool_calls": [call("file_write", path="made.py", content="x = 1\n")]}
    claims = {"text": "I created `made.py`. All tests pass. Lint is clean."}
    editor = open_editor(write, tests, claims, flags=("--permission-mode", "auto"), **NOTICES)
    editor.prompt("go")
    assert editor.text() == claims["text"]
    assert editor.updates("notice")[-1] == {
        "sessionUpdate": "notice",
        "severity": "warning",
        "title": "Claims checked:",
        "description": "✓ I created made.py.\n"
        "✗ All tests pass. - the log says otherwise\n"
        "? Lint is clean. - not verified",
    }


@slow
def test_titles_of_calls_are_one_line_of_plain_text(open_editor: Open) -> None:
    calls = [
        call("think", thought="# Plan\nuse **two** `steps` on src/**/*.py"),
        call("bash", command="echo `date` **\nls"),
        call("ask_user", question="Which **one**?\n\n- red\n- `blue`", options=["red", "blue"]),
    ]
    editor = open_editor({"tool_calls": calls}, DONE, flags=("--permission-mode", "auto"))
    prompt = editor.begin_prompt("go")
    asked = editor.asked("session/request_permission")
    assert asked["params"]["toolCall"]["title"] == "Which one? - red - blue"
    assert asked["params"]["toolCall"]["content"][0]["content"]["text"] == calls[2]["input"]["question"]
    editor.choose(asked, "answer:0")
    editor.end(prompt)
    titles = [one["title"] for one in editor.calls]
    assert titles == ["Think Plan use two steps on src/**/*.py", "Run echo `date` ** ls", "Ask Which one? - red - blue"]


@slow
def test_a_key_is_kept_from_a_terminal(place: Place) -> None:
    ran = place.run("acp", "--login", stdin="tavily\nkey\n")
    assert "Providers that use an API key: anthropic" in ran.out
    assert "tavily" in place.run("login").out
    assert place.run("acp", "--login", stdin="").code == 2


@slow
def test_a_subagents_calls_are_distinguished_and_ask(place: Place, open_editor: Open) -> None:
    child = place.script(WRITE, {"text": "Written."})
    editor = open_editor({"tool_calls": [call("create_subagent", task="write it", model=child)]}, DONE)
    editor.answers["session/request_permission"] = choosing("allow_once")
    editor.prompt("go")
    outer, inner = editor.calls
    assert outer["title"] == "Agent write it"
    assert inner["title"] == "general-1: Write made"
    assert inner["toolCallId"] != outer["toolCallId"]
    assert outer["status"] == inner["status"] == "completed"
    assert editor.asked("session/request_permission")["params"]["toolCall"]["toolCallId"] == inner["toolCallId"]
    assert (place.folder / "made").exists()


@slow
def test_output_of_a_running_command_is_reported(open_editor: Open) -> None:
    command = "echo one; sleep 0.6; echo two; exit 3"
    editor = open_editor({"tool_calls": [call("bash", command=command)]}, DONE, flags=("--permission-mode", "auto"))
    editor.prompt("go")
    shown = [
        update["content"][0]["content"]["text"] for update in editor.updates("tool_call_update") if "content" in update
    ]
    assert shown[0] == "```\none\n```"
    assert shown[-1].startswith("```\none\ntwo")


def first_choice(params: dict[str, Any]) -> dict[str, Any]:
    """Takes the first choice of a form, and writes where there is none."""
    choice = params["requestedSchema"]["properties"].get("choice")
    return {"action": "accept", "content": {"choice": choice["enum"][0]} if choice else {"words": "Monday"}}


@slow
def test_mcp_servers_of_the_editor_are_used(place: Place) -> None:
    server = str(Path(__file__).parents[1] / "mcp_server.py")
    servers: list[dict[str, Any]] = [
        {"name": "test", "command": sys.executable, "args": ["-I", server], "env": [{"name": "TOKEN", "value": "b"}]},
        {"type": "http", "name": "gone", "url": "http://127.0.0.1:9/mcp", "headers": []},
    ]
    script = place.script({"tool_calls": [call("mcp__test__env"), call("mcp__test__book")]}, ECHO)
    with Editor(place.process("acp", "-m", script, stdin=True)) as editor:
        answer = editor.introduce(**FORMS)
        assert answer["agentCapabilities"]["mcpCapabilities"] == {"http": True, "sse": True}
        editor.session = editor.request("session/new", cwd=str(place.folder), mcpServers=servers)["sessionId"]
        editor.answers["session/request_permission"] = choosing("allow_once")
        editor.answers["elicitation/create"] = first_choice
        editor.prompt("go")
        env, book = editor.calls
        assert "TOKEN" in env["content"][0]["content"]["text"]
        assert "Monday" in book["content"][0]["content"]["text"]
        assert editor.asked("elicitation/create")["params"]["toolCallId"] == book["toolCallId"]
        assert any("The MCP server gone offers no tools: " in notice for notice in editor.notices)
        assert editor.ended().code == 0


# Files of the editor


def holding(buffers: dict[str, str], written: dict[str, str] | None = None) -> Answer:
    """An editor that has these files open, with text that nobody has saved, by name."""

    def read(params: dict[str, Any]) -> Any:
        path = Path(params["path"])
        if path.name in buffers:
            return {"content": buffers[path.name]}
        return {"content": path.read_text()} if path.exists() else Refused(-32002, "not there")

    def write(params: dict[str, Any]) -> Any:
        Path(params["path"]).write_text(params["content"], newline="")
        buffers.pop(Path(params["path"]).name, None)
        if written is not None:
            written[Path(params["path"]).name] = params["content"]
        return None

    return write if written is not None else read


@slow
def test_unsaved_changes_are_read_edited_and_left_by_undo(place: Place, open_editor: Open) -> None:
    change = call("file_edit", path="a.py", old_string='"bye"', new_string='"later"')
    replies = ({"tool_calls": [call("file_read", path="a.py")]}, {"tool_calls": [change]}, ECHO)
    editor = open_editor(*replies, flags=("--permission-mode", "acceptEdits"), **FILES)
    buffers, written = {"a.py": '# mine\nprint("hi")\nprint("bye")\n'}, {}
    editor.answers["fs/read_text_file"] = holding(buffers)
    editor.answers["fs/write_text_file"] = holding(buffers, written)
    editor.prompt("change it")
    assert "# mine" in editor.calls[0]["content"][0]["content"]["text"]
    assert written["a.py"] == '# mine\nprint("hi")\nprint("later")\n'
    assert (place.folder / "a.py").read_text() == written["a.py"]
    editor.prompt("/undo yes")
    assert (place.folder / "a.py").read_text() == '# mine\nprint("hi")\nprint("bye")\n'


@slow
def test_bytes_outside_an_edit_stay_as_they_are(place: Place, open_editor: Open) -> None:
    (place.folder / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    (place.folder / "old.txt").write_bytes("für\nzwei\n".encode("latin-1"))
    calls = [
        call("file_edit", path="dos.txt", old_string="two", new_string="2"),
        call("file_edit", path="old.txt", old_string="zwei", new_string="2"),
    ]
    editor = open_editor({"tool_calls": calls}, ECHO, flags=("--permission-mode", "acceptEdits"), **FILES)
    buffers = {"dos.txt": "one\ntwo\n", "old.txt": "für\nzwei\n"}
    editor.answers["fs/read_text_file"] = lambda params: {"content": buffers[Path(params["path"]).name]}
    editor.answers["fs/write_text_file"] = lambda params: None  # the editor keeps it unsaved
    editor.prompt("go")
    assert (place.folder / "dos.txt").read_bytes() == b"one\r\n2\r\n"
    assert (place.folder / "old.txt").read_bytes() == "für\n2\n".encode("latin-1")


@slow
def test_bytes_that_an_editor_cannot_show_stay_as_they_are(place: Place, open_editor: Open) -> None:
    text = "für größere Straßen über München\n"
    (place.folder / "a.txt").write_bytes(text.encode() + b"\xff one\n")
    change = call("file_edit", path="a.txt", old_string="one", new_string="two")
    editor = open_editor({"tool_calls": [change]}, ECHO, flags=("--permission-mode", "acceptEdits"), **FILES)
    editor.answers["fs/read_text_file"] = lambda params: {"content": f"{text}\ufffd one\n"}
    editor.answers["fs/write_text_file"] = holding({}, {})
    editor.prompt("go")
    assert (place.folder / "a.txt").read_bytes() == text.encode() + b"\xff two\n"


@slow
def test_files_have_the_paths_that_the_editor_knows(place: Place, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(place.folder)
    with Editor(place.process("acp", "-m", place.script(WRITE, DONE), stdin=True)) as editor:
        editor.introduce(**FILES)
        editor.open(tmp_path / "link")
        editor.answers["session/request_permission"] = choosing("allow_once")
        written: dict[str, str] = {}
        editor.answers["fs/write_text_file"] = holding({}, written)
        editor.prompt("write")
        assert editor.asked("fs/write_text_file")["params"]["path"] == str(tmp_path / "link" / "made")
        assert editor.calls[0]["locations"][0]["path"] == str(tmp_path / "link" / "made")
        assert (place.folder / "made").read_text() == "x\n"


@slow
def test_a_write_that_the_editor_refuses_fails(place: Place, open_editor: Open) -> None:
    editor = open_editor(WRITE, ECHO, flags=("--permission-mode", "acceptEdits"), **FILES)
    editor.answers["fs/read_text_file"] = lambda params: Refused(-32002, "not there")
    editor.answers["fs/write_text_file"] = lambda params: Refused(-32603, "read-only workspace")
    editor.prompt("go")
    assert "the editor could not write it: read-only workspace" in editor.text()
    assert not (place.folder / "made").exists()


# The end


@slow
def test_when_the_editor_goes_all_is_stored_and_nothing_is_left(place: Place) -> None:
    flags = ("--permission-mode", "auto")
    editor = edit(place, {"text": "Begun.", "tool_calls": [call("bash", command="sleep 98.5")]}, flags=flags)
    with editor:
        editor.begin_prompt("go")
        editor.wait_for_update("tool_call_update", status="in_progress")
        wait_until(lambda: "sleep 98.5" in command_lines(), "the command")
        ran = editor.ended()
        assert (ran.code, ran.err) == (0, "")
        assert "sleep 98.5" not in command_lines()
        assert "Begun." in stored(place, editor)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@slow
def test_a_signal_ends_it_in_order(place: Place, number: signal.Signals) -> None:
    with edit(place, SLOW) as editor:
        prompt = editor.begin_prompt("go")
        editor.wait_for_update("agent_message_chunk")
        editor.signal(number)
        assert editor.end(prompt)["stopReason"] == "cancelled"
        assert editor.left().code == 128 + number
        assert '"go"' in stored(place, editor)


@slow
def test_an_editor_that_does_not_read_holds_nobody_up(place: Place) -> None:
    process = place.process("acp", "-m", place.script({"text": "word " * 400_000, "chunk": 2_000}), stdin=True)
    assert process.stdin is not None
    say = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    new = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": str(place.folder), "mcpServers": []}}
    assert process.stdout is not None
    process.stdin.write((json.dumps(say) + "\n" + json.dumps(new) + "\n").encode())
    process.stdin.flush()
    process.stdout.readline()
    session = json.loads(process.stdout.readline())["result"]["sessionId"]
    text = [{"type": "text", "text": "go"}]
    go = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": {"sessionId": session, "prompt": text}}
    process.stdin.write((json.dumps(go) + "\n").encode())
    process.stdin.flush()
    wait_until(lambda: "word" in place.run("sessions", "show", session).out, "the answer in the log")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    process.stdin.close()
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()
