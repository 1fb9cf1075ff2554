"""Measures `agentcli serve` under many streams: how late events come, and what memory a stream takes.

    python benchmarks/serve_streams.py [STREAMS] [WORKERS]

Each session's scripted model writes a text of numbered pieces for about 20 s; a client in a process of its own follows all of
the streams. A piece is as late as it comes after the pace of its stream. Events are stored in batches of at most 50 ms, which
counts. The floor of the memory is that of a server with one session.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

PIECES, EVERY_MS = 200, 100


def rss_mb(pid: int) -> float:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in (pid, *children))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def follow(client: httpx2.AsyncClient, path: str, late: list[float], ids: list[int]) -> None:
    """Note when each piece comes, and each event's id."""
    async with client.stream("GET", f"{path}/events") as answer:
        rest = b""
        async for chunk in answer.aiter_bytes():
            now = time.time()
            *blocks, rest = (rest + chunk).split(b"\n\n")
            for block in blocks:
                if b"\ndata: " not in block:
                    continue
                head, data = block.split(b"\ndata: ", 1)
                ids.append(int(head[4:]))
                if b'"content_block_delta"' in data:
                    late.append(now)
                if b'"type":"result"' in data:
                    return


def ages_of(times: list[float]) -> list[float]:
    """How late each piece is against the least late one within a second: the model's own pace drifts slowly."""
    starts = [when - n * EVERY_MS / 1_000 for n, when in enumerate(times)]
    return [start - min(starts[max(0, n - 10) : n + 11]) for n, start in enumerate(starts)]


async def main(streams: int, workers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "model.jsonl")
        text = "".join(f"{n:04d}" for n in range(PIECES))
        script.write_text(json.dumps({"text": text, "chunk": 4, "delay_ms": EVERY_MS}) + "\n")
        env = {**os.environ, "AGENTCLI_HOME": folder, "AGENTCLI_SERVE_RATE_PER_MINUTE": "10000000"}
        command = [sys.executable, "-m", "agentcli", "serve", "-m", f"scripted/{script}", "--workers", str(workers)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=folder) as server:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            token = Path(told["token_file"]).read_text().strip()
            limits = httpx2.Limits(max_connections=None)
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(
                base_url=told["url"], headers=headers, limits=limits, timeout=120, trust_env=False
            ) as client:
                await client.post("/v1/sessions", json={})
                before = rss_mb(server.pid)
                paths = []
                for _ in range(streams):
                    made = await client.post("/v1/sessions", json={})
                    paths.append(f"/v1/sessions/{made.json()['session_id']}")
                heard: list[tuple[list[float], list[int]]] = [([], []) for _ in paths]
                following = [
                    asyncio.create_task(follow(client, path, *one)) for path, one in zip(paths, heard, strict=True)
                ]
                await asyncio.gather(*(client.post(f"{path}/messages", json={"content": "go"}) for path in paths))
                await asyncio.sleep(PIECES * EVERY_MS / 2_000)
                during = rss_mb(server.pid)
                await asyncio.gather(*following)
            server.terminate()
    ages = sorted(age for times, _ in heard for age in ages_of(times))
    doubled = sum(len(ids) - len(set(ids)) for _, ids in heard)
    lost = sum(PIECES - len(times) for times, _ in heard)
    print(f"{streams} streams, {workers} workers, {len(ages)} pieces")
    print(
        f"age of a piece: median {1e3 * ages[len(ages) // 2]:.0f} ms, p99 {1e3 * ages[len(ages) * 99 // 100]:.0f} ms, most {1e3 * ages[-1]:.0f} ms"
    )
    print(f"joined with another {lost}, doubled {doubled}")
    print(f"memory: {before:.0f} MB before, {during:.0f} MB with all, {(during - before) / streams:.2f} MB a stream")


asyncio.run(
    main(
        *(int(one) for one in sys.argv[1:])
        if len(sys.argv) > 2
        else (int(sys.argv[1]) if len(sys.argv) > 1 else 200, 1)
    )
)
