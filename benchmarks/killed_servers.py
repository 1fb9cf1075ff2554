"""Kills servers and their workers at random moments, and checks that clients lose nothing and see nothing twice.

    python benchmarks/killed_servers.py [SECONDS] [SEED]

Two workers serve four sessions. Two clients of each send messages, again until each is acknowledged, under ids of their own; a
reader of each comes back behind the last event. Every second or so a worker or the whole server gets SIGKILL or SIGTERM. At the
end each acknowledged message has to be in the conversation once, in the stream once, and to have one result.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.app.http_client import Client, Event, Server
from tests.app.running import Place

SESSIONS, PATIENCE_S = 4, 60


class Run:
    def __init__(self, place: Place) -> None:
        script = place.script(*({"text": f"Answer {n}, some words.", "chunk": 5, "delay_ms": 15} for n in range(400)))
        self._flags = ("-m", script, "--workers", "2", "--port", str(random.randint(20_000, 40_000)))
        self._place = place
        self._server = self._started()
        self.sessions = [self._server.session().id for _ in range(SESSIONS)]
        self.said: dict[str, list[str]] = {id: [] for id in self.sessions}
        self.heard: dict[str, list[Event]] = {id: [] for id in self.sessions}
        self.is_over = self.has_sent = False

    def _started(self) -> Server:
        return Server(self._place, *self._flags, env={"AGENTCLI_SERVE_RATE_PER_MINUTE": "10000000"})

    def say(self, session: str, name: str) -> None:
        count = 0
        while not self.has_sent:
            body = {"content": f"message {name}-{count}", "stream_id": f"{name}-{count}"}
            while True:
                try:
                    answer = self._server.client.post(f"/v1/sessions/{session}/messages", json=body, timeout=15)
                except httpx2.HTTPError:
                    time.sleep(0.2)
                    continue
                if answer.status_code == 202:
                    break
                time.sleep(0.2)
            self.said[session].append(body["stream_id"])
            count += 1
            time.sleep(random.uniform(0.2, 0.8))

    def follow(self, session: str) -> None:
        heard = self.heard[session]
        while not self.is_over:
            try:
                with Client(self._server, session).follow(heard[-1][0] if heard else None) as events:
                    for event in events:
                        heard.append(event)
                        if self.is_over or random.random() < 0.01:
                            break
            except (httpx2.HTTPError, AssertionError):
                time.sleep(0.1)

    def kill(self) -> None:
        pid = self._server.running.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if workers and random.random() < 0.75:
            os.kill(int(random.choice(workers)), random.choice((signal.SIGKILL, signal.SIGTERM)))
            return
        self._server.running.signal(random.choice((signal.SIGKILL, signal.SIGTERM)))
        self._server.running.left()
        self._server = self._started()

    def answered(self) -> bool:
        return all(set(said) <= set(self.results(id)) for id, said in self.said.items())

    def results(self, session: str) -> Counter[str]:
        return Counter(one["stream_id"] for _, one in self.heard[session] if one["type"] == "result")

    def faults(self, session: str) -> list[str]:
        heard, said = self.heard[session], self.said[session]
        ids = [id for id, _ in heard]
        messages = self._server.client.get(f"/v1/sessions/{session}").json()["messages"]
        texts = {
            "log": Counter(block["text"] for one in messages if one["role"] == "user" for block in one["content"]),
            "stream": Counter(
                block.get("text") for _, one in heard if one["type"] == "user" for block in one["message"]["content"]
            ),
        }
        results = self.results(session)
        found = [] if ids == sorted(set(ids)) else ["an event came twice, or out of order"]
        for name in said:
            found += [
                f"{name}: {texts[where][f'message {name}']} times in the {where}"
                for where in texts
                if texts[where][f"message {name}"] != 1
            ]
            found += [f"{name}: {results[name]} results"] if results[name] != 1 else []
        return found

    def end(self) -> None:
        self._server.__exit__()


def main(seconds: int = 60, seed: int = 1) -> int:
    random.seed(seed)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = Run(Place(Path(folder)))
        senders = [
            threading.Thread(target=run.say, args=(session, f"{n}{who}"), daemon=True)
            for n, session in enumerate(run.sessions)
            for who in "ab"
        ]
        readers = [threading.Thread(target=run.follow, args=(session,), daemon=True) for session in run.sessions]
        for thread in (*senders, *readers):
            thread.start()
        end, kills = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            time.sleep(random.uniform(0.5, 2.5))
            run.kill()
            kills += 1
        run.has_sent = True
        for thread in senders:
            thread.join()
        deadline = time.monotonic() + PATIENCE_S
        while not run.answered() and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(1)
        faults = [fault for session in run.sessions for fault in run.faults(session)]
        run.is_over = True
        run.end()
    print(f"{kills} kills, {sum(map(len, run.said.values()))} messages acknowledged, {len(faults)} faults")
    print("\n".join(faults[:20]))
    return int(bool(faults))


sys.exit(main(*(int(one) for one in sys.argv[1:])))
