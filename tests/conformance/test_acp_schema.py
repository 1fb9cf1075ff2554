"""The SDK of the Agent Client Protocol as an oracle: each message the program sends is one that it knows."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.editor import FILES, FORMS, Refused, choosing, edit
from tests.app.running import Place, call

pytestmark = pytest.mark.oracle

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PLAN = {"text": "# Plan\n\n1. Rest.\n"}
REPLIES = (
    {
        "thinking": "Hm.",
        "text": "I look.",
        "tool_calls": [call("file_read", path="a.py"), call("file_read", path="p.png")],
    },
    {
        "tool_calls": [
            call("todo", items=[{"content": "a", "status": "in_progress"}, {"content": "b", "status": "pending"}])
        ]
    },
    {
        "tool_calls": [
            call("file_edit", path="a.py", old_string="hi", new_string="ho"),
            call("file_write", path="n", content=""),
        ]
    },
    {"tool_calls": [call("bash", command="echo one; sleep 0.5; echo two; cp a.py b.py")]},
    {"tool_calls": [call("grep_search", pattern="ho"), call("file_list"), call("nothing", x=1)]},
    {"tool_calls": [call("ask_user", question="Which?", options=["red", "blue"])]},
    {"text": "Lint is clean."},
    {"error": {"kind": "bad_request"}},
)


@pytest.fixture
def place(tmp_path: Any) -> Place:
    made = Place(tmp_path)
    (made.folder / "a.py").write_text('print("hi")\n')
    (made.folder / "p.png").write_bytes(PICTURE)
    return made


def played(place: Place, **capabilities: Any) -> list[dict[str, Any]]:
    """All messages of a session in which everything happens."""
    with edit(place, PLAN, *REPLIES, **capabilities) as editor:
        editor.answers["session/request_permission"] = choosing("allow_once")
        editor.answers["elicitation/create"] = lambda params: {
            "action": "accept",
            "content": {"choice": next(iter(params["requestedSchema"]["properties"]["choice"]["enum"]))},
        }
        editor.answers["fs/read_text_file"] = lambda params: {"content": "# mine\n"}
        editor.answers["fs/write_text_file"] = lambda params: None
        editor.request("session/set_mode", sessionId=editor.session, modeId="plan")
        editor.prompt("go")
        with pytest.raises(Refused):
            editor.prompt("again")
        editor.request("session/set_config_option", sessionId=editor.session, configId="effort", value="high")
        editor.prompt("/undo")
        editor.prompt("/context")
        editor.request("session/close", sessionId=editor.session)
        editor.request("session/load", sessionId=editor.session, cwd=str(place.folder), mcpServers=[])
        editor.request("session/resume", sessionId=editor.session, cwd=str(place.folder), mcpServers=[])
        fork = editor.request("session/fork", sessionId=editor.session, cwd=str(place.folder), mcpServers=[])
        editor.request("session/close", sessionId=fork["sessionId"])
        editor.request("session/list")
        editor.request("session/delete", sessionId=editor.session)
        return [*editor.said, *editor.messages]


def checked(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Validate each message with the model of its method; gives what was sent, by name."""
    from acp import schema

    results = {
        "initialize": schema.InitializeResponse,
        "session/new": schema.NewSessionResponse,
        "session/load": schema.LoadSessionResponse,
        "session/resume": schema.ResumeSessionResponse,
        "session/fork": schema.ForkSessionResponse,
        "session/list": schema.ListSessionsResponse,
        "session/close": schema.CloseSessionResponse,
        "session/delete": schema.DeleteSessionResponse,
        "session/prompt": schema.PromptResponse,
        "session/set_mode": schema.SetSessionModeResponse,
        "session/set_config_option": schema.SetSessionConfigOptionResponse,
    }
    requests = {
        "session/update": schema.SessionNotification,
        "session/request_permission": schema.RequestPermissionRequest,
        "elicitation/create": schema.CreateFormSessionElicitationRequest,
        "fs/read_text_file": schema.ReadTextFileRequest,
        "fs/write_text_file": schema.WriteTextFileRequest,
    }
    asked: dict[Any, str] = {}
    for message in messages:
        if message.get("method") in results:
            asked[message["id"]] = message["method"]
        elif "method" in message:
            told = requests[message["method"]].model_validate(message["params"], strict=True)
            yield getattr(getattr(told, "update", None), "session_update", message["method"])
            _same(told, message["params"])
        elif "error" in message:
            schema.Error.model_validate(message["error"])
            yield "error"
        else:
            _same(results[asked[message["id"]]].model_validate(message["result"], strict=True), message["result"])


def _same(model: Any, given: Any) -> None:
    """Nothing that was sent is unknown to the model, and would be dropped."""
    back = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert back == given


EVERYTHING = {
    "user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan",
    "available_commands_update", "config_option_update", "session_info_update", "usage_update",
    "current_mode_update", "session/request_permission", "error",
}  # fmt: skip


def test_every_message_is_as_the_schema_has_it(place: Place) -> None:
    names = set(checked(played(place)))
    assert names == EVERYTHING


def test_those_of_forms_and_files_too(place: Place) -> None:
    names = set(checked(played(place, **FORMS, **FILES)))
    assert names == EVERYTHING | {"elicitation/create", "fs/read_text_file", "fs/write_text_file"}
