"""Makes turns of a session's entries, as documents tell them: prompts, replies, calls with results, notices."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from agentcli.agent.accounting.usage import UsageCollector
from agentcli.agent.interfaces import SessionInfo
from agentcli.conversation import entries
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.file_changes import FilesRestored
from agentcli.conversation.history import calls_in, text_of
from agentcli.conversation.mentions import typed_blocks
from agentcli.llm.messages import Base64Source, Block, Document, Image, Text, Thinking, ToolUse
from agentcli.tools.summary import call_title

_ATTACHED = re.compile(r'<(?:file|folder) path="([^"]*)"')


class PromptItem(Struct, frozen=True):
    """A message of the person; `attached` names the files that came with it."""

    time: float
    text: str
    images: tuple[Base64Source, ...] = ()
    attached: tuple[str, ...] = ()


class CallItem(Struct, frozen=True):
    """A call and its result, None where it has none."""

    use: ToolUse
    result: entries.Result | None

    @property
    def title(self) -> str:
        return call_title(self.use.name, self.use.input)

    @property
    def diff(self) -> str:
        structured = self.result.structured if self.result else None
        diff = structured.get("diff") if isinstance(structured, dict) else None
        return diff if isinstance(diff, str) else ""

    @property
    def text(self) -> str:
        return self.result.result.text if self.result else ""

    @property
    def images(self) -> tuple[Base64Source, ...]:
        content = self.result.result.content if self.result else ""
        return _images(() if isinstance(content, str) else content)

    @property
    def failed(self) -> bool:
        return self.result is None or self.result.result.is_error

    @property
    def outcome(self) -> str:
        """Its summary and the person's answer, in a line."""
        if self.result is None:
            return "no result"
        return " · ".join(part for part in (self.result.summary, self.result.answer) if part)


class Reply(Struct, frozen=True):
    """One reply, and what came of its calls."""

    body: entries.Assistant
    calls: tuple[CallItem, ...]

    @property
    def model(self) -> str:
        return f"{self.body.provider}/{self.body.model}"

    @property
    def text(self) -> str:
        return text_of(self.body).strip()

    @property
    def thinking(self) -> str:
        return "\n\n".join(b.thinking.strip() for b in self.body.content if isinstance(b, Thinking) and b.thinking)


class Remark(Struct, frozen=True):
    """Something that happened to the session, and its longer text."""

    text: str
    detail: str = ""


Item = PromptItem | Reply | Remark


class Story(Struct, frozen=True):
    """A session as documents tell it: the path that counts, by turns; `cost` is of everything that was paid."""

    info: SessionInfo
    turns: tuple[tuple[Item, ...], ...]
    cost: UsageCollector

    @property
    def title(self) -> str:
        return " ".join((self.info.name or self.info.title or "Conversation").split())

    @property
    def replies(self) -> list[Reply]:
        return [item for turn in self.turns for item in turn if isinstance(item, Reply)]

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(reply.model for reply in self.replies))


def story_of(info: SessionInfo, log: Sequence[entries.Entry]) -> Story:
    conversation = Conversation(log)
    cost = UsageCollector()
    for entry in conversation.entries:  # also what was taken back was paid for
        cost.add(info.id, entry)
    turns: list[list[Item]] = [[]]
    for is_new, item in _items(conversation.path):
        if is_new:
            turns.append([])
        turns[-1].append(item)
    return Story(info, tuple(tuple(items) for items in turns if items), cost)


def _items(path: Sequence[entries.Entry]) -> Iterator[tuple[bool, Item]]:
    """Yield each item of the story, and whether a turn begins with it."""
    results: dict[str, deque[entries.Result]] = {}  # ids are a model's, and may come again
    for entry in path:
        if isinstance(entry.body, entries.Result):
            results.setdefault(entry.body.result.tool_use_id, deque()).append(entry.body)
    for entry in path:
        match entry.body:
            case entries.User(content) if entry.is_prompt:
                yield True, _prompt(entry.time, content)
            case entries.Assistant() as body:
                uses = ((use, results.get(use.id)) for use in calls_in(body))
                calls = tuple(CallItem(use, there.popleft() if there else None) for use, there in uses)
                yield False, Reply(body, calls)
            case _:
                if remark := _remark(entry):
                    yield False, remark


def _prompt(time: float, content: Sequence[Block]) -> PromptItem:
    typed = typed_blocks(content)
    text = "".join(block.text for block in typed if isinstance(block, Text)).strip()
    others = (block for block in content if isinstance(block, Text) and block not in typed)
    attached = [found[1] for block in others if (found := _ATTACHED.match(block.text))]
    attached += ["a document" for block in content if isinstance(block, Document)]
    return PromptItem(time, text, _images(content), tuple(attached))


def _images(content: Sequence[Block]) -> tuple[Base64Source, ...]:
    return tuple(block.source for block in content if isinstance(block, Image))


def _remark(entry: entries.Entry) -> Remark | None:
    text, detail = "", ""
    match entry.body:
        case entries.Compaction() as made:
            sizes = f"{made.tokens_before:,} → {made.tokens_after:,} tokens, {made.strategy}, {made.trigger}"
            text, detail = f"The conversation was compacted ({sizes}).", made.carried
        case entries.ProviderSwitch(before, after, reason):
            text = f"Another model answers: {before} → {after} ({reason})."
        case entries.Rewound() | entries.HeadMoved():
            text = "The person went back to here; what followed is left out."
        case entries.Retracted(ids):
            text = f"{len(ids)} entr{'y was' if len(ids) == 1 else 'ies were'} taken back."
        case entries.Labelled(name):
            text = f"Label: {name}"
        case FilesRestored(_, changes):
            text = f"Changes to {len(changes)} file{'s' * (len(changes) != 1)} were taken back, or done again."
        case entries.PlanAccepted(plan):
            text, detail = "The plan was accepted.", plan
        case entries.SkillActivated(_, skill, by):
            text = f"The skill {skill.name} was activated by the {by}."
        case entries.Paid(model, reason="refused" | "broken" as reason):
            text = f"A request to {model} brought no reply ({reason})."
        case entries.ContextNote(said):
            text = said
        case entries.Unreadable(error):
            text = f"[{error}]"
        case _:
            return None
    return Remark(text, detail.strip())
