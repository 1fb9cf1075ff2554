"""The protocol's TypeScript SDK as a client, and its JSON Schema, which has more than the Python SDK knows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests import npm
from tests.app.editor import NOTICES
from tests.app.running import Place, call
from tests.conformance.test_acp_schema import place, played

__all__ = ["place"]  # a fixture

pytestmark = pytest.mark.oracle

CLIENT = Path(__file__).with_name("acp_client.mjs")


@pytest.fixture(scope="session")
def sdk() -> Path:
    """The `.bin` folder beside the SDK, with a `node` that is new enough for it."""
    return npm.installed("@agentclientprotocol/sdk@2.4.0", "zod@4.6.7")


def steps(sdk: Path, place: Place, *flags: str) -> Iterator[tuple[str, Any]]:
    module = sdk.parent / "@agentclientprotocol/sdk/dist/v1/unstable/acp.js"
    command = [sdk / "node", CLIENT, module, place.folder, sys.executable, "-m", "agentcli", "acp", *flags]
    ran = subprocess.run(
        command, check=True, cwd=place.folder, env=place.environment, stdout=subprocess.PIPE, timeout=60
    )
    for line in ran.stdout.splitlines():
        step = json.loads(line)
        yield step["step"], step["value"]


def test_its_client_opens_forks_resumes_lists_and_deletes_sessions(sdk: Path, place: Place) -> None:
    place.run("login", "anthropic", "--untried", stdin="sk-ant-test\n")
    write = {"tool_calls": [call("file_write", path="made", content="x\n")]}
    told = list(steps(sdk, place, "-m", place.script(write, {"text": "I created made. Lint is clean."})))
    answers = {step: value for step, value in told if step != "update"}
    assert [method["type"] for method in answers["initialize"]["authMethods"]] == ["terminal"]
    assert answers["authenticate"] == answers["close"] == answers["delete"] == {}
    assert answers["prompt"]["stopReason"] == answers["prompt fork"]["stopReason"] == "end_turn"
    first, copy = answers["new"]["sessionId"], answers["fork"]["sessionId"]
    assert {one["sessionId"] for one in answers["list"]["sessions"]} == {first, copy}
    assert [one["sessionId"] for one in answers["list again"]["sessions"]] == [copy]
    assert answers["resume"]["configOptions"][0]["id"] == "mode"
    notices = [value["update"] for step, value in told if step == "update" and "severity" in value["update"]]
    assert {(notice["severity"], notice["title"]) for notice in notices} == {("warning", "Claims checked:")}


def test_its_client_is_asked_to_log_in_where_there_is_no_key(sdk: Path, place: Place) -> None:
    answers = dict(steps(sdk, place))
    assert answers["authenticate"]["code"] == answers["new"]["code"] == -32000


def test_every_message_is_as_its_schema_has_it(sdk: Path, place: Place) -> None:
    schema = json.loads((sdk.parent / "@agentclientprotocol/sdk/schema/v1/schema.unstable.json").read_text())
    kinds = {  # of the definitions that a request, a notification, or an answer fits
        (form["x-method"], name.endswith("Response")): {"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}
        for name, form in schema["$defs"].items()
        if "x-method" in form
    }
    asked: dict[Any, str] = {}
    seen = set()
    for message in played(place, **NOTICES):  # the client's requests come first
        if "method" in message:
            Draft202012Validator(kinds[message["method"], False]).validate(message["params"])
            asked.setdefault(message.get("id"), message["method"])
            seen.add(message["params"].get("update", {}).get("sessionUpdate", message["method"]))
        elif "result" in message:
            Draft202012Validator(kinds[asked[message["id"]], True]).validate(message["result"])
    assert {"notice", "tool_call", "plan", "usage_update", "session/fork", "session/delete"} <= seen
