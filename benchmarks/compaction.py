"""What compaction keeps, takes and saves: 200 facts asked for afterwards, its time, and the bill of 300 turns.

Parts: `needles`, `speed`, `bill`; all of them without arguments. A scripted model answers; no network. Tokens of the
bill are bytes / 4, priced as the Messages API does: reading a cached token 0.1, writing it 1.25, output 5.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from loopback import median

from agentcli import Agent, AgentOptions
from agentcli.agent.context.compaction import Basis
from agentcli.agent.events import Compaction
from agentcli.conversation.entries import Paid
from agentcli.conversation.history import LogSearch
from agentcli.llm.messages import Message, Text, ToolResult

KINDS = ("fact", "path", "decision", "failure")
PER_KIND = 50
FILLER = "The module reads its input line by line, checks each field and writes a row for what passed. "


def needle(kind: str, number: int) -> tuple[str, str]:
    """A sentence that is said once, and what is asked for later."""
    value = f"{kind[:2]}{number * 7919 % 10_007}x{number}"
    match kind:
        case "fact":
            return (
                f"The staging password hint of customer {number} is {value}.",
                f"staging password hint customer {number}",
            )
        case "path":
            return f"Put the converter for format {number} into src/conv/{value}.py.", f"converter for format {number}"
        case "decision":
            return (
                f"I decided to name table {number} {value}, because the old name clashed.",
                f"name of table {number} decided",
            )
        case _:
            return f"tool_{value}: no such build target {number}", f"no such build target {number}"


def value_of(kind: str, number: int) -> str:
    return f"{kind[:2]}{number * 7919 % 10_007}x{number}"


def script_and_prompts(filler: int) -> tuple[list[dict[str, Any]], list[str]]:
    """A turn for each number: a fact and a path from the person, a failed command, a long read, a decision."""
    replies: list[dict[str, Any]] = []
    prompts = []
    for number in range(PER_KIND):
        failing = f"echo '{needle('failure', number)[0]}' >&2; exit 1"
        replies += [
            {"text": "I try.", "tool_calls": [{"name": "bash", "input": {"command": failing}}]},
            {"text": "I read.", "tool_calls": [{"name": "file_read", "input": {"path": f"f{number % 10}.txt"}}]},
            {"text": f"{FILLER * filler}{needle('decision', number)[0]} {FILLER * filler}"},
        ]
        prompts.append(f"{needle('fact', number)[0]} {needle('path', number)[0]}")
    return replies, prompts


def all_text(messages: tuple[Message, ...]) -> str:
    blocks = (block for message in messages for block in message.content)
    return "\n".join(block.text for block in blocks if isinstance(block, Text | ToolResult))


async def talk(
    folder: Path, replies: list[dict[str, Any]], prompts: list[str], *, window: int, **compaction: Any
) -> tuple[Agent, list[tuple[Message, ...]], list[Compaction]]:
    script, writer = folder / "script.jsonl", folder / "writer.jsonl"
    script.write_text("".join(f"{json.dumps(reply)}\n" for reply in replies))
    written = {"text": "Asked: a step. Done: looked. Decided: to go on. Open: nothing. " * 20}
    writer.write_text(f"{json.dumps(written)}\n" * 2_000)
    rows = {str(file): {"window": window, "prices": {"input": 2, "output": 10}} for file in (script, writer)}
    settings = {"models": {"scripted": rows}, "compaction": {"summary_model": f"scripted/{writer}", **compaction}}
    requests: list[tuple[Message, ...]] = []

    async def seen(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        requests.append(messages)
        return messages

    agent = Agent(
        f"scripted/{script}",
        cwd=folder,
        permissions="bypassPermissions",
        options=AgentOptions(settings=settings, context_transform=seen),
    )
    compactions = []
    for prompt in prompts:
        async for event in agent.stream(prompt):
            if isinstance(event, Compaction):
                compactions.append(event)
    return agent, requests, compactions


async def needles(folder: Path) -> None:
    replies, prompts = script_and_prompts(30)
    agent, requests, compactions = await talk(folder, replies, prompts, window=80_000)
    session = await agent.session()
    text, past = all_text(session.state.conversation.messages), LogSearch(session.state.conversation)
    spoken = sum(len(msgspec.json.encode(entry.body)) for entry in session.state.conversation.entries) // 4
    print(
        f"needles   {spoken:,} tokens said, {len(compactions)} compactions ({', '.join(c.strategy for c in compactions)})"
    )
    for kind in KINDS:
        here = found = 0
        for number in range(PER_KIND):
            value, query = value_of(kind, number), needle(kind, number)[1]
            is_here = value in text
            here += is_here
            found += not is_here and value in "\n".join(past.search(query)[:12])
        print(f"  {kind:<9} {here} in context, {found} by one recall, {PER_KIND - here - found} lost")
    rules = (folder / "AGENTS.md").read_text()
    print(
        f"  instruction file in context: {rules in text}; largest request {max(map(len, map(all_text, requests))):,} characters"
    )
    await agent.close()


async def speed(folder: Path) -> None:
    replies, prompts = script_and_prompts(45)
    agent, _, _ = await talk(folder, replies, prompts, window=1_000_000)
    session = await agent.session()
    _, info = await session.runtime.models.resolve(session.state)
    prefix, conversation = session.runtime.prefix(info), session.state.conversation
    used = conversation.size.tokens(prefix.system, prefix.tools, info)
    watch = session.runtime.context.watch
    for strategy in ("truncate", "extract"):
        compactor = watch.compactor  # type: ignore[union-attr]
        compactor.settings = msgspec.structs.replace(compactor.settings, strategy=strategy)
        model = msgspec.structs.replace(info, window=int(used / 0.8))
        took = []
        for _ in range(7):
            before = time.process_time()
            made = await compactor.compact(Basis(conversation=conversation, model=model, prefix=prefix, used=used))
            took.append((time.process_time() - before) * 1_000)
        after = made if isinstance(made, str) else f"{made.tokens_after:,} ({made.strategy})"
        print(
            f"speed     {strategy:<9} {used:,} -> {after} tokens in {median(took):.0f} ms CPU, median of 7 (bound 150)"
        )
    await agent.close()


def billed(requests: list[tuple[Message, ...]], fixed: int) -> float:
    """Base-price tokens: what was in the request before is read from the cache, the rest is written to it."""
    sizes = [[len(msgspec.json.encode(message)) / 4 for message in request] for request in requests]
    total = 1.25 * (fixed + sum(sizes[0]))
    for (before, after), size in zip(pairwise(requests), sizes[1:], strict=True):
        same = next(
            (n for n, (one, two) in enumerate(zip(before, after, strict=False)) if one != two),
            min(len(before), len(after)),
        )
        total += 0.1 * (fixed + sum(size[:same])) + 1.25 * sum(size[same:])
    return total


async def bill(folder: Path) -> None:
    replies: list[dict[str, Any]] = []
    for number in range(300):
        replies.append({"tool_calls": [{"name": "file_read", "input": {"path": f"f{number % 10}.txt"}}]})
        replies.append({"text": f"{FILLER * 2} Step {number} is done."})
    prompts = [f"Do step {number}. {FILLER}" for number in range(300)]
    costs = {}
    for strategy in ("auto", "summarize"):
        agent, requests, compactions = await talk(folder, replies, prompts, window=150_000, strategy=strategy)
        entries = (await agent.session()).state.conversation.entries
        paid = [entry.body.usage for entry in entries if isinstance(entry.body, Paid)]
        summaries = sum(usage.prompt_tokens + 5 * usage.output_tokens for usage in paid)
        costs[strategy] = billed(requests, 1_700) + summaries
        kinds = ", ".join(f"{event.strategy} to {event.tokens_after:,}" for event in compactions)
        print(
            f"bill      {strategy:<9} {costs[strategy]:,.0f} tokens, {summaries:,} of them for {len(paid)} summaries; {len(compactions)} compactions ({kinds})"
        )
        await agent.close()
    print(f"          {costs['auto'] / costs['summarize']:.2f} x the run with summaries alone (bound 0.8)")


def main() -> None:
    parts = {"needles": needles, "speed": speed, "bill": bill}
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["AGENTCLI_HOME"] = f"{folder}/home"
            work = Path(folder) / "work"
            work.mkdir()
            (work / "AGENTS.md").write_text("Run the tests with make check.\n\tNever touch vendor/.\n")
            for number in range(10):
                (work / f"f{number}.txt").write_text("".join(f"row {row} {FILLER}\n" for row in range(40)))
            asyncio.run(parts[name](work))


if __name__ == "__main__":
    main()
