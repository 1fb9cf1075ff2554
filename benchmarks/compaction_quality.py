"""What a compaction keeps, against the two ways of the field: python benchmarks/compaction_quality.py [CONVERSATIONS] [SEED].

Long conversations hold planted sentences: rules and facts that the person states, decisions in the model's answers, and
failures in the results of calls. Each conversation is compacted for several windows, and the score is the share of the
planted values that are still in the messages. Every way gets as many tokens as agentcli's result took:

- `drop the oldest` keeps the newest messages that fit;
- `summarise everything` replaces all but the newest messages by a summary of at most 2,000 tokens or half of the room.
  In place of a model, which no two runs would agree on, it is made of the most informative sentences, as agentcli finds
  them for its own excerpts.

agentcli's own result is made without a model. The exit code is 1 if it does not win at every window.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from agentcli import Message, Text
from agentcli.conversation.compaction.digest import Scorer, Sentence, pick_excerpts, split_sentences
from agentcli.hooks import create_context_transform
from agentcli.library.functions import count_conversation_tokens
from agentcli.llm.messages import ToolResult, ToolUse

WINDOWS = (8_000, 16_000, 32_000, 64_000)
MODEL = "anthropic/claude-sonnet-5-5"
KINDS = ("rule", "fact", "decision", "failure")
MAX_SUMMARY_TOKENS = 2_000
TOPICS = "parser cache queue schema login invoice router worker index upload report search".split()
ROOT = Path(__file__).parents[1]
# What people and models write is drawn from the documentation, what tools print from the source.
SENTENCES = [
    sentence
    for page in sorted((ROOT / "docs").glob("*.md"))
    for sentence in re.split(
        r"(?<=[.:])\s+",
        " ".join(re.sub(r"```.*?```|^[|#].*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).split()),
    )
    if 30 < len(sentence) < 250
]
LINES = [line for file in sorted((ROOT / "agentcli").rglob("*.py")) for line in file.read_text().splitlines()]


class Planted:
    """The sentences that are planted in one conversation: a value for each, by kind."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: dict[str, list[str]] = {kind: [] for kind in KINDS}

    def sentence(self, kind: str) -> str:
        value = f"{self.rng.choice(TOPICS)}_{self.rng.randrange(16**6):06x}"
        self.values[kind].append(value)
        topic = self.rng.choice(TOPICS)
        return {
            "rule": f"From now on, never change {value} without asking me.",
            "fact": f"The {topic} of our largest customer is called {value}.",
            "decision": f"I keep the {topic} in {value}, because the other name is taken.",
            "failure": f"error: {value} is not a target of the {topic}",
        }[kind]


def words(rng: random.Random, sentences: int) -> list[str]:
    return [rng.choice(SENTENCES) for _ in range(sentences)]


def output(rng: random.Random, lines: int) -> str:
    start = rng.randrange(len(LINES) - lines)
    return "\n".join(LINES[start : start + lines])


def make_conversation(rng: random.Random, turns: int) -> tuple[list[Message], Planted]:
    """Messages of that many turns: a prompt, one to four calls with results, an answer."""
    planted, messages = Planted(rng), []
    for turn in range(turns):
        prompt = [f"Step {turn}: look at the {rng.choice(TOPICS)}.", *words(rng, rng.randrange(1, 6))]
        if turn % 5 == 0:
            prompt.insert(rng.randrange(len(prompt) + 1), planted.sentence("rule"))
        if turn % 2 == 0:
            prompt.insert(rng.randrange(len(prompt) + 1), planted.sentence("fact"))
        messages.append(Message("user", (Text(" ".join(prompt)),)))
        for number in range(rng.randrange(1, 5)):
            call = ToolUse(f"call_{turn}_{number}", "bash", {"command": f"make {rng.choice(TOPICS)}"})
            fails = number == 0 and turn % 3 == 0
            printed = planted.sentence("failure") if fails else output(rng, rng.randrange(5, 80))
            messages.append(Message("assistant", (Text(words(rng, 1)[0]), call)))
            messages.append(Message("user", (ToolResult(call.id, printed, is_error=fails),)))
        answer = words(rng, rng.randrange(2, 12))
        if turn % 2:
            answer.insert(rng.randrange(len(answer) + 1), planted.sentence("decision"))
        messages.append(Message("assistant", (Text(" ".join(answer)),)))
    messages.append(Message("user", (Text("Go on with the next step."),)))
    return messages, planted


def text_of(messages: list[Message]) -> str:
    blocks = (block for message in messages for block in message.content)
    return "\n".join(block.text for block in blocks if isinstance(block, Text | ToolResult))


def tokens(messages: list[Message]) -> int:
    return count_conversation_tokens(messages, MODEL)


def newest_that_fit(messages: list[Message], room: int) -> list[Message]:
    """Return the most of the newest messages that take at most `room` tokens, from a prompt of the person on."""
    starts = [
        n for n, message in enumerate(messages) if message.role == "user" and isinstance(message.content[0], Text)
    ]
    first = bisect_left(starts, True, key=lambda start: tokens(messages[start:]) <= room)
    return messages[starts[first] :] if first < len(starts) else messages[-1:]


def drop_oldest(messages: list[Message], room: int) -> list[Message]:
    return newest_that_fit(messages, room)


def sentences_of(messages: list[Message]) -> Iterator[Sentence]:
    for number, message in enumerate(messages):
        for block in message.content:
            if isinstance(block, Text):
                kind: Literal["prompt", "answer"] = "prompt" if message.role == "user" else "answer"
                yield from split_sentences(number, kind, message.role, block.text)
            elif isinstance(block, ToolResult) and block.is_error:
                yield from split_sentences(number, "failure", "error", block.text)


def summarise_everything(messages: list[Message], room: int) -> list[Message]:
    most = min(MAX_SUMMARY_TOKENS, room // 2)
    newest = newest_that_fit(messages, room - most)
    sentences = [*sentences_of(messages[: len(messages) - len(newest)])]
    lines = pick_excerpts(sentences, most, lambda text: len(text) // 4, Scorer(sentences))
    summary = "\n".join(lines)
    return [Message("user", (Text(f"Summary of the conversation so far:\n{summary}"),)), *newest]


async def compact(messages: list[Message], window: int) -> list[Message]:
    return list(await create_context_transform(max_context_tokens=window)(tuple(messages)))


def score(messages: list[Message], planted: Planted) -> dict[str, float]:
    text = text_of(messages)
    return {kind: sum(value in text for value in values) / len(values) for kind, values in planted.values.items()}


def main() -> None:
    count, seed = (int(argument) for argument in (*sys.argv[1:], *("30", "1")[len(sys.argv) - 1 :]))
    rng = random.Random(seed)
    conversations = [make_conversation(rng, rng.randrange(60, 120)) for _ in range(count)]
    sizes = sorted(tokens(messages) for messages, _ in conversations)
    print(f"{count} conversations of {sizes[0]:,} to {sizes[-1]:,} tokens, seed {seed}\n")
    print(f"| window | way | tokens | {' | '.join(f'{kind}s' for kind in KINDS)} | all |\n|{'---|' * (4 + len(KINDS))}")
    ways: dict[str, Callable[[list[Message], int], list[Message]]] = {
        "summarise everything": summarise_everything,
        "drop the oldest": drop_oldest,
    }
    is_best = True
    for window in WINDOWS:
        totals: dict[str, Counter[str]] = {name: Counter() for name in ("agentcli", *ways)}
        for messages, planted in conversations:
            ours = asyncio.run(compact(messages, window))
            room = tokens(ours)
            results = {"agentcli": ours} | {name: way(messages, room) for name, way in ways.items()}
            for name, result in results.items():
                totals[name].update(score(result, planted))
                totals[name]["tokens"] += tokens(result)
        means = {name: sum(total[kind] for kind in KINDS) / len(KINDS) / count for name, total in totals.items()}
        for name, total in totals.items():
            kinds = " | ".join(f"{100 * total[kind] / count:.0f} %" for kind in KINDS)
            print(f"| {window:,} | {name} | {total['tokens'] / count:,.0f} | {kinds} | {100 * means[name]:.0f} % |")
        is_best = is_best and means["agentcli"] == max(means.values()) > sorted(means.values())[-2]
    sys.exit(not is_best)


if __name__ == "__main__":
    main()
