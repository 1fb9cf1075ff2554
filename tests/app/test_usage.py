"""What sessions used, as `agentcli usage`, /usage and a library's collector tell it."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, UsageCollector
from agentcli.llm.messages import Usage
from tests.app.running import Place, call

pytestmark = pytest.mark.slow

FIRST = {
    "text": "Let me look.",
    "tool_calls": [call("file_list", output_level="brief"), call("file_read", path="nope")],
    "usage": {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 900, "cost_usd": 0.5},
}
LAST = {"text": "Done.", "usage": {"input_tokens": 100, "output_tokens": 20, "cost_usd": 1.25}}


def usage(place: Place, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.run("usage", "--json", *arguments).out)
    return found


def test_calls_that_were_declined_neither_succeeded_nor_failed(place: Place) -> None:
    commands = [call("bash", command=command) for command in ("true", "exit 3", "cat x", "cat y")]
    model = place.script({"tool_calls": commands}, LAST)
    place.run("-m", model, "-p", "go", "--deny", "Bash(cat *)", "--permission-mode", "bypassPermissions")
    (row,) = (row for row in usage(place)["tools"] if row["tool"] == "bash")
    assert (row["success_rate"], row["errors"]) == (0.5, {"failed": 1, "permission_denied": 2})
    assert "4 calls  50% ok" in (shown := place.run("usage").out), shown
    assert "2 declined, 1 failed" in shown


def test_usage_adds_up_what_is_stored(place: Place) -> None:
    assert place.run("usage").out == "No usage in the last 30 days. To see all, add --days 0.\n"
    model = place.script({"error": {"kind": "overloaded"}}, FIRST, LAST)
    ran = place.run("-m", model, "-p", "go", "--output-format", "json")
    place.run("-m", place.script(LAST), "-p", "go")
    found = usage(place)
    total = found["total"]
    assert (total["input_tokens"], total["output_tokens"], total["cache_read_input_tokens"]) == (300, 60, 900)
    assert (total["cost_usd"], total["requests"], total["retries"]) == (pytest.approx(3.0), 3, 1)
    assert [day["day"] for day in found["days"]] == [time.strftime("%Y-%m-%d")]
    assert found["models"][0]["model"] == model
    tools = {row["tool"]: row for row in found["tools"]}
    assert (tools["file_list"]["success_rate"], tools["file_list"]["output_levels"]) == (1.0, {"brief": 1})
    assert (tools["file_read"]["success_rate"], tools["file_read"]["errors"]) == (0.0, {"ENOENT": 1})
    assert tools["file_read"]["tokens"] > 0
    assert found["users"][0]["cost_usd"] == pytest.approx(3.0)
    id = ran.result["session_id"]
    (one,) = usage(place, "--session", id[:36])["sessions"]
    assert (one["session_id"], one["cost_usd"], one["turns"], one["rounds"], one["retries"]) == (id, 1.75, 1, 2, 1)
    assert one["started"] <= one["ended"]


def test_usage_is_readable(place: Place) -> None:
    model = place.script(FIRST, LAST)
    place.run("-m", model, "-p", "go")
    out = place.run("usage").out
    assert out.startswith("$1.75 for 2 requests in 1 session")
    assert f"{time.strftime('%Y-%m-%d')}  2 requests  1,100 in  82%  40 out  $1.75\n" in out
    assert "file_read  1 call" in out
    assert "1 ENOENT" in out


def test_days_that_are_not_asked_for_are_left_out(place: Place) -> None:
    place.run("-m", place.script(FIRST, LAST), "-p", "go")
    database = sqlite3.connect(place.home / "state" / "sessions.db")
    database.execute("UPDATE entries SET time = time - 3 * 86400")
    database.commit()
    database.close()
    assert usage(place, "--days", "1")["total"]["requests"] == 0
    assert usage(place, "--days", "4")["total"]["requests"] == 2
    assert usage(place, "--days", "0")["total"]["cost_usd"] == 1.75


def test_an_unknown_session_is_an_error(place: Place) -> None:
    ran = place.run("usage", "--session", "nope")
    assert ran.code == 1
    assert "There is no session 'nope'" in ran.err


def test_the_slash_command_tells_of_turns_and_budgets(place: Place) -> None:
    model = place.script(FIRST, LAST)
    place.run("-m", model, "-p", "go")
    out = place.run("-m", model, "-c", "-p", "/usage", "--max-budget-usd", "5").out
    assert "1,100 tokens in (900 cached), 40 out, $1.7500" in out
    assert "last turn" in out
    assert "session's budget $1.75 of $5.00 (35%)" in " ".join(out.split())


def test_thousands_of_entries_are_added_up_fast(place: Place) -> None:
    place.run("-m", place.script(FIRST, LAST), "-p", "go")
    database = sqlite3.connect(place.home / "state" / "sessions.db")
    database.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
        "INSERT INTO entries SELECT i * 100 + entries.n, i * 100 + entries.n, 1, session_id, 0, seq + i * 100, "
        "id || i, parent_id, time, kind, schema_version, checksum, body FROM entries, n"
    )
    database.commit()
    database.close()
    began = time.monotonic()
    found = usage(place)
    assert found["total"]["requests"] == 4_002
    assert time.monotonic() - began < 30  # what grows with the square takes minutes


async def test_a_collector_adds_up_all_agents_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    script = tmp_path / "script.jsonl"
    broken = {"text": "Half", "usage": {"input_tokens": 7, "cost_usd": 0.25}, "error": {"kind": "connection"}}
    script.write_text("\n".join(json.dumps(reply) for reply in (FIRST, LAST, broken)))
    collector = UsageCollector()
    async with (
        Agent(f"scripted/{script}", cwd=tmp_path, options=AgentOptions(usage=collector, user_id="ada")) as one,
        Agent(f"scripted/{script}", cwd=tmp_path, options=AgentOptions(usage=collector)) as other,
    ):
        await one.run("go")
        await other.run("go")
        async for _ in other.stream("and on"):
            pass
    assert (collector.total.requests, collector.total.cost_usd) == (5, pytest.approx(3.75))
    assert len(collector.sessions) == 2
    assert (collector.users["ada"].requests, collector.users[""].requests) == (2, 3)
    assert collector.tools["file_read"].calls == 2
    assert collector.report()["total"]["input_tokens"] == 407
    collector.add_request("own/model", Usage(input_tokens=3), 0.25, 1_000, 2)  # as its callers may have written it
    assert (collector.total.retries, collector.models["own/model"].duration_ms) == (2, 1_000)
