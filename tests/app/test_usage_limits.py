"""Usage limits that name their end: told, and waited for where the settings allow it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from agentcli.llm.errors import seconds_until_reset
from tests.app.running import Place, Running
from tests.conformance.replies import chat_reply
from tests.conformance.servers import LoopbackServer, chat_server, json_reply
from tests.rows import each_row

LIMITED = json_reply({"error": {"message": "Usage limit reached."}}, 429, retry_after="3600")
TALK = ("--input-format", "stream-json", "--output-format", "stream-json")
WAITS = {"AGENTCLI_LIMITS_WAIT_FOR_RESET": "true"}


def at(server: LoopbackServer, **more: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-1", **more}


def started(place: Place, server: LoopbackServer, *arguments: str) -> Running:
    return place.start("-m", "openai/m", *TALK, *arguments, env=at(server, **WAITS), stdin=True)


def reset_at(place: Place, when: float) -> None:
    """Make the limit that is waited for reset at another time."""
    with closing(sqlite3.connect(place.home / "state/sessions.db")) as stored, stored:
        changed = stored.execute(
            "UPDATE entries SET checksum = NULL, body = json_set(body, '$.until', ?) WHERE kind = 'reset_awaited'",
            (when,),
        )
        assert changed.rowcount == 1


def test_a_limit_ends_the_turn_with_its_time_and_the_setting_that_waits(place: Place) -> None:
    with chat_server([LIMITED]) as server:
        ran = place.run("-m", "openai/m", "-p", "go", env=at(server))
        assert len(server.requests) == 1
    assert ran.code == 1
    assert "Usage limit reached (HTTP 429). The server asks to wait 3600 s (1 h), until " in ran.err
    assert "agentcli config set limits.wait_for_reset true" in ran.err


def test_a_wait_that_was_killed_continues_at_the_reset_once(place: Place) -> None:
    with chat_server([LIMITED, chat_reply("Now.")]) as server:
        with started(place, server) as running:
            running.say("go")
            told = running.wait_for_type("system", "retry")
            assert 3_500_000 < told["delay_ms"] <= 3_600_000
        # it was killed
        reset_at(place, time.time() + 0.5)
        with started(place, server, "-c") as running:
            assert running.wait_for_type("result")["result"] == "Now."
            assert running.ended().code == 0
        with started(place, server, "-c") as running:
            assert running.ended().code == 0
        assert len(server.requests) == 2


def test_a_limit_that_comes_again_is_not_waited_for_again(place: Place) -> None:
    with chat_server([LIMITED, LIMITED]) as server:
        with started(place, server) as running:
            running.say("go")
            running.wait_for_type("system", "retry")
        reset_at(place, time.time())
        with started(place, server, "-c") as running:
            assert "asks to wait" in running.wait_for_type("result")["result"]
        with started(place, server, "-c") as running:
            assert running.ended().code == 0
        assert len(server.requests) == 2


def test_a_cancelled_wait_is_not_continued(place: Place) -> None:
    with chat_server([LIMITED]) as server:
        with started(place, server) as running:
            running.say("go")
            running.wait_for_type("system", "retry")
            running.control("interrupt")
            assert running.wait_for_type("result")["subtype"] == "interrupted"
            running.ended()
        with started(place, server, "-c") as running:
            assert running.ended().code == 0
        assert len(server.requests) == 1


@each_row(
    "headers, error, seconds",
    [
        ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "IN_AN_HOUR"}, {}, 3600),
        ({"anthropic-ratelimit-requests-remaining": "7", "anthropic-ratelimit-requests-reset": "IN_AN_HOUR"}, {}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1h2m3s"}, {}, 3723),
        ({"anthropic-ratelimit-unified-reset": "EPOCH"}, {}, 3600),
        ({}, {"type": "usage_limit_reached", "resets_in_seconds": 5400}, 5400),
        ({}, {"resets_at": "EPOCH"}, 3600),
        ({"x-ratelimit-reset-requests": "soon"}, {"resets_at": True}, None),
        ({"x-ratelimit-reset": "EPOCH_MS"}, {}, 3600),
        ({"x-ratelimit-reset": "1.2.3s"}, {}, None),
        ({"x-ratelimit-reset": "9" * 400 + "h"}, {"resets_at": 10**400}, None),
        ({"x-ratelimit-reset": "99999999999999999"}, {"resets_in_seconds": 33 * 86_400}, None),
        ({"x-ratelimit-reset": "9999-12-31T23:59:59-23:59"}, {"resets_at": "9999-12-31"}, None),
    ],
)
def test_the_time_of_a_reset_is_read_in_each_form(
    headers: dict[str, str], error: dict[str, Any], seconds: float | None
) -> None:
    later = time.time() + 3_600
    forms = {"IN_AN_HOUR": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(later)), "EPOCH": str(int(later))}
    forms["EPOCH_MS"] = f"{forms['EPOCH']}000"
    told = {name: forms.get(str(value), value) for name, value in error.items()}
    body = json_reply({"error": told}).body
    found = seconds_until_reset({name: forms.get(value, value) for name, value in headers.items()}, body)
    assert found == (None if seconds is None else pytest.approx(seconds, abs=5))


@pytest.mark.slow
def test_an_overloaded_service_runs_as_a_dry_run_for_over_a_minute_and_says_so(place: Place) -> None:
    busy = json_reply({"error": {"message": "Overloaded"}}, 529)
    with chat_server([*[busy] * 7, chat_reply("Now.")]) as server:
        assert place.run("-m", "openai/m", "-p", "go", env=at(server)).out == "Now.\n"
    with chat_server([busy, busy]) as server:
        ran = place.run("-m", "openai/m", "-p", "go", env=at(server, AGENTCLI_RETRY_MAX="1"))
    assert "OpenAI is overloaded (HTTP 529, tried 2 times over 1 s). Try again later, or" in ran.err
