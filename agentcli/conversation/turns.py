"""Groups a conversation's path into turns: a prompt, what was thought, done and seen for it, and the answer."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Entry, Result, User
from agentcli.llm.messages import Text, Thinking, ToolUse

LONGEST_PART = 100  # characters of the prompt, the tools and the answer in a turn's summary


class Step(Struct, frozen=True):
    """An entry that reaches the model. `number` is its place in the log from 1 on, which `recall` takes."""

    number: int
    entry: Entry


class TurnRecord(Struct, frozen=True):
    """One turn, which begins with the person's message; notes ahead of the first one belong to it.

    A message that steers a running turn begins a turn of its own.
    """

    number: int
    steps: tuple[Step, ...]

    @property
    def prompt(self) -> str:
        bodies = (step.entry.body for step in self.steps if is_prompt(step.entry))
        return "".join(body.text for body in bodies if isinstance(body, User))

    @property
    def replies(self) -> list[Assistant]:
        return [step.entry.body for step in self.steps if isinstance(step.entry.body, Assistant)]

    @property
    def thoughts(self) -> list[str]:
        """The reasoning, and the texts of replies that went on with calls."""
        found = [block.thinking for reply in self.replies for block in reply.content if isinstance(block, Thinking)]
        return [text for text in found + [text_of(reply) for reply in self.replies if calls_in(reply)] if text.strip()]

    @property
    def calls(self) -> list[ToolUse]:
        return [use for reply in self.replies for use in calls_in(reply)]

    @property
    def observations(self) -> list[Result]:
        return [step.entry.body for step in self.steps if isinstance(step.entry.body, Result)]

    @property
    def answer(self) -> str:
        """The text of the replies without calls."""
        return "".join(text_of(reply) for reply in self.replies if not calls_in(reply))

    @property
    def summary(self) -> str:
        """The turn in one line, made by rules: prompt, tools and answer, 100 characters of each."""
        names = [use.name for use in self.calls]
        tools = ", ".join(f"{name} ×{names.count(name)}" for name in dict.fromkeys(names))
        parts = (self.prompt, tools, self.answer)
        return " → ".join(one_line(part, LONGEST_PART) for part in parts if part.strip())


def turn_records(conversation: Conversation) -> list[TurnRecord]:
    """The turns on the path, oldest first, numbered from 1 on."""
    turns: list[list[Step]] = []
    has_prompt = False
    for step in steps_of(conversation):
        if not turns or (is_prompt(step.entry) and has_prompt):
            turns.append([])
        has_prompt = has_prompt or is_prompt(step.entry)
        turns[-1].append(step)
    return [TurnRecord(number, tuple(steps)) for number, steps in enumerate(turns, 1)]


def steps_of(conversation: Conversation) -> Iterator[Step]:
    numbers = {id(entry): number for number, entry in enumerate(conversation.entries, 1)}
    for entry in conversation.path:
        if isinstance(entry.body, User | Assistant | Result):
            yield Step(numbers[id(entry)], entry)


def is_prompt(entry: Entry) -> bool:
    """True for a message of the person."""
    return isinstance(entry.body, User) and not entry.body.is_reminder


def text_of(reply: Assistant) -> str:
    return "".join(block.text for block in reply.content if isinstance(block, Text))


def calls_in(reply: Assistant) -> list[ToolUse]:
    return [block for block in reply.content if isinstance(block, ToolUse)]


def one_line(text: str, most: int) -> str:
    """The text on one line, cut to so many characters."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[:most].rstrip()}…"
