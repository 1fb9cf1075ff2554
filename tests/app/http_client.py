"""A client of `agentcli serve`, written from the contract: it sends, follows, and comes back."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.app.running import PATIENCE_S, Place, Ran, Running, wait_until

Event = tuple[int, dict[str, Any]]


class Server:
    """A server process, and what its clients need."""

    def __init__(self, place: Place, *flags: str, env: dict[str, str] | None = None) -> None:
        self.running: Running = place.start("serve", *flags, env=env)
        self.told = self.running.wait_for(lambda line: "url" in line)
        self.token = Path(self.told["token_file"]).read_text().strip()
        self.client = self.with_token(self.token)

    @property
    def url(self) -> str:
        return str(self.told["url"])

    def with_token(self, token: str) -> httpx2.Client:
        transport = httpx2.HTTPTransport(uds=self.told["socket"]) if "socket" in self.told else None
        headers = {"Authorization": f"Bearer {token}"}
        return httpx2.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE_S, transport=transport, trust_env=False
        )

    def session(self, **given: Any) -> Client:
        answer = self.client.post("/v1/sessions", json=given)
        assert answer.status_code == 201, answer.text
        return Client(self, answer.json()["session_id"])

    def ended(self, number: signal.Signals = signal.SIGKILL) -> Ran:
        """End the server by a signal."""
        self.running.signal(number)
        return self.running.left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.running.__exit__(None, None, None)


class Client:
    """Follows one session; each event is heard once."""

    def __init__(self, server: Server, session_id: str) -> None:
        self.server = server
        self.id = session_id
        self.path = f"/v1/sessions/{session_id}"

    def say(self, content: Any, **more: Any) -> str:
        answer = self.server.client.post(f"{self.path}/messages", json={"content": content, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["stream_id"])

    def op(self, type: str, **more: Any) -> None:
        answer = self.server.client.post(f"{self.path}/ops", json={"type": type, **more})
        assert answer.status_code == 202, answer.text

    def follow(self, after: int | None = None) -> Following:
        return Following(self, after)

    def until(self, is_last: Callable[[dict[str, Any]], bool], after: int | None = None) -> list[Event]:
        """The events up to the first for which that holds."""
        with self.follow(after) as events:
            return events.until(is_last)

    def answered(self, content: Any, **more: Any) -> dict[str, Any]:
        """Say something, and wait for its result."""
        stream_id = self.say(content, **more)
        return self.until(lambda one: one["type"] == "result" and one["stream_id"] == stream_id)[-1][1]


class Following:
    """An open stream of events."""

    def __init__(self, client: Client, after: int | None) -> None:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        self._stream = client.server.client.stream("GET", f"{client.path}/events", headers=headers)

    def __enter__(self) -> Self:
        self._answer = self._stream.__enter__()
        assert self._answer.status_code == 200, self._answer.read()
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        self._events = events_in(self._answer.iter_bytes())
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def until(self, is_last: Callable[[dict[str, Any]], bool]) -> list[Event]:
        heard: list[Event] = []
        watch = threading.Timer(PATIENCE_S, self._answer.close)
        watch.start()
        try:
            for event in self._events:
                heard.append(event)
                if is_last(event[1]):
                    return heard
        except httpx2.HTTPError:
            pass
        finally:
            watch.cancel()
        raise AssertionError(f"it did not come; heard: {heard[-5:]}")


def events_in(chunks: Iterator[bytes]) -> Iterator[Event]:
    """The events of a stream, as the specification reads it (of line ends, only \\n is used here)."""
    rest = b""
    for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line and line[:1] != b":")
            if b"data" in fields:
                yield int(fields[b"id"]), json.loads(fields[b"data"])


def kinds(events: list[Event]) -> list[str]:
    return [
        one["subtype"] if one["type"] == "system" else one["type"] for _, one in events if one["type"] != "stream_event"
    ]


def text_of(events: list[Event]) -> str:
    """What the deltas say."""
    return "".join(
        one["event"]["delta"].get("text", "")
        for _, one in events
        if one["type"] == "stream_event" and one["event"]["type"] == "content_block_delta"
    )


def is_result(one: dict[str, Any]) -> bool:
    return bool(one["type"] == "result")


def followed_through_kill(
    sessions: Sequence[Client], kill: Callable[[], None]
) -> tuple[float, list[list[tuple[float, dict[str, Any]]]]]:
    """Say something in each session and kill what answers once all streams go on, which are followed to their ends.

    Gives when that was, and the events of each session with the time of each. None is lost, and none comes twice.
    """
    heard: dict[str, list[tuple[float, int, dict[str, Any]]]] = {session.id: [] for session in sessions}

    def follow(session: Client) -> None:
        """As a page does: it comes back behind the last event."""
        events = heard[session.id]
        while not (events and is_result(events[-1][2])):
            with suppress(httpx2.HTTPError), session.follow(events[-1][1] if events else None) as stream:
                for id, one in stream:
                    events.append((time.monotonic(), id, one))
                    if is_result(one):
                        return
            time.sleep(0.05)

    sent = [session.say("hi") for session in sessions]
    with ThreadPoolExecutor(len(sessions)) as at_once:
        following = [at_once.submit(follow, session) for session in sessions]
        wait_until(lambda: all(len(one) > 5 for one in heard.values()), "all streams")
        kill()
        killed = time.monotonic()
        for one in following:
            one.result(60)
    for session, stream_id in zip(sessions, sent, strict=True):
        ids, (_, _, end) = [id for _, id, _ in heard[session.id]], heard[session.id][-1]
        assert ids == sorted(set(ids))
        assert (end["stream_id"], end["subtype"]) == (stream_id, "success")
    return killed, [[(at, one) for at, _, one in events] for events in heard.values()]
