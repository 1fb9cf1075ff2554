"""Arranges a session's entries for readers, and writes Markdown for a pull request.

A story is a session as readers see it: turns with prompts, replies, calls with their results, and remarks.
"""

import html
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from agentcli.agent.accounting import UsageCollector
from agentcli.agent.interfaces import SessionInfo
from agentcli.conversation import entries
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.history import calls_in, counted, text_of
from agentcli.conversation.mentions import typed_blocks
from agentcli.frontends.printable import fenced, replace_hidden
from agentcli.llm.messages import Base64Source, Block, Document, Image, Text, Thinking, ToolUse
from agentcli.tools.observation import call_title

_ATTACHED = re.compile(r'<(?:file|folder) path="([^"]*)"')


class PromptItem(Struct, frozen=True):
    """A message from the person."""

    time: float
    text: str
    images: tuple[Base64Source, ...] = ()
    attached: tuple[str, ...] = ()  # names of files and folders


class CallItem(Struct, frozen=True, kw_only=True):
    title: str
    outcome: str = "no result"  # a line: the summary of the result, and the person's answer
    is_failed: bool = True
    text: str = ""
    diff: str = ""
    images: tuple[Base64Source, ...] = ()


class Reply(Struct, frozen=True):
    """One reply of the model, and its calls."""

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
    """A line about an event of the session, with an optional longer text."""

    text: str
    detail: str = ""


Item = PromptItem | Reply | Remark


class Story(Struct, frozen=True):
    """A session as documents show it."""

    info: SessionInfo
    turns: tuple[tuple[Item, ...], ...]  # of the current branch
    cost: UsageCollector  # of all branches

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
    """Arrange the current branch of a session into turns for a document, each call together with its result."""
    conversation = Conversation(log)
    cost = UsageCollector(conversation.entries)
    turns: list[list[Item]] = [[]]
    results = defaultdict[str, deque[entries.Result]](deque)  # a queue for each call id, which a model may reuse
    for entry in conversation.path:  # first of all, because a result comes after the reply that made the call
        if isinstance(entry.body, entries.Result):
            results[entry.body.result.tool_use_id].append(entry.body)
    for entry in conversation.path:
        match entry.body:
            case entries.User(content) if entry.is_prompt:
                turns.append([_prompt(entry.time, content)])
            case entries.Assistant() as body:
                calls = tuple(_call_item(use, results[use.id]) for use in calls_in(body))
                turns[-1].append(Reply(body, calls))
            case _:
                turns[-1] += _remarks(entry)
    return Story(info, tuple(tuple(items) for items in turns if items), cost)


def _call_item(use: ToolUse, results: deque[entries.Result]) -> CallItem:
    """Return an item for a call and the first of `results`, which is removed from them."""
    title = call_title(use.name, use.input)
    if not results:
        return CallItem(title=title)
    ended = results.popleft()
    diff = ended.structured.get("diff") if isinstance(ended.structured, dict) else None
    content = ended.result.content
    return CallItem(
        title=title,
        outcome=" · ".join(filter(None, (ended.summary, ended.answer))),
        is_failed=ended.result.is_error,
        text=ended.result.text,
        diff=diff if isinstance(diff, str) else "",
        images=_images(() if isinstance(content, str) else content),
    )


def _prompt(time: float, content: Sequence[Block]) -> PromptItem:
    typed = typed_blocks(content)  # the other texts are attached files and folders
    text = "".join(block.text for block in typed if isinstance(block, Text)).strip()
    others = (block for block in content if isinstance(block, Text) and block not in typed)
    attached = [found[1] for block in others if (found := _ATTACHED.match(block.text))]
    attached += ["a document" for block in content if isinstance(block, Document)]
    return PromptItem(time, text, _images(content), tuple(attached))


def _images(content: Sequence[Block]) -> tuple[Base64Source, ...]:
    return tuple(block.source for block in content if isinstance(block, Image))


def _remarks(entry: entries.Entry) -> Iterator[Remark]:
    """Yield a remark for an entry that is neither a message nor a result, if readers should know of it."""
    match entry.body:
        case entries.Compaction() as body:
            sizes = f"{body.tokens_before:,} → {body.tokens_after:,} tokens, {body.strategy}, {body.trigger}"
            yield Remark(f"The conversation was compacted ({sizes}).", body.carried.strip())
        case entries.ProviderSwitch(before, after, reason):
            yield Remark(f"Switched models: {before} → {after} ({reason}).")
        case entries.Rewound() | entries.HeadMoved():
            yield Remark("The user rewound to here. What followed is omitted.")
        case entries.Retracted(ids):
            yield Remark(f"{counted(len(ids), 'entry was', 'entries were')} removed from the conversation.")
        case entries.Labelled(name):
            yield Remark(f"Label: {name}")
        case entries.FilesRestored(_, changes):
            yield Remark(f"Changes to {counted(len(changes), 'file')} were undone or reapplied.")
        case entries.PlanAccepted(plan):
            yield Remark("The plan was approved.", plan.strip())
        case entries.SkillActivated(_, skill, by):
            yield Remark(f"The skill {skill.name} was activated by the {by}.")
        case entries.Paid(model=model, reason="refused" | "broken" as reason):
            yield Remark(f"A request to {model} got no reply ({reason}).")
        case entries.ContextNote(text):
            yield Remark(text)
        case entries.Unreadable(error):
            yield Remark(f"[{error}]")


MAX_RESULT_CHARS = 20_000  # a whole pull request description may have 65,536


def as_markdown(story: Story) -> str:
    facts = "\n".join(f"- {name}: {_line(fact)}" for name, fact in header_fields(story).items())
    parts = [f"# {_line(story.title)}", facts]
    for turn in story.turns:
        model = ""  # named in the latest heading
        for item in turn:
            if isinstance(item, Reply) and item.text and item.model != model:
                parts.append(f"### {_line(item.model)}")
                model = item.model
            parts += _format_item(item)
    parts += ["## Usage", usage_table(story)]
    return "\n\n".join(part for part in parts if part) + "\n"


def header_fields(story: Story) -> dict[str, str]:
    model, cost = ", ".join(story.models) or "none", format_cost(story.cost.total.full_cost_usd)
    return {"Date": format_time(story.info.created), "Model": model, "Cost": cost, "Session": story.info.id}


def format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def format_cost(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:.4f}" if usd < 1 else f"${usd:.2f}"


def _format_item(item: Item) -> Iterator[str]:
    match item:
        case PromptItem(_, text, images, attached):
            yield f"## Prompt\n\n{_quoted(safe_markdown(text))}"
            names = [f"`{_line(name).replace('`', '')}`" for name in attached] + ["an image"] * len(images)
            yield f"Attached: {', '.join(names)}" if names else ""
        case Reply() as reply:
            yield safe_markdown(reply.text)
            for call in reply.calls:
                yield from _format_call(call)
        case Remark(text, detail):
            yield f"> **Note:** {_line(text)}"
            yield _folded("Its text", replace_hidden(detail)) if detail else ""


def _format_call(call: CallItem) -> Iterator[str]:
    outcome = f" · {_line(call.outcome)}" if call.outcome else ""
    yield f"{'✗' if call.is_failed else '✓'} **{_line(call.title)}**{outcome}"
    if call.diff:
        yield fenced(replace_hidden(call.diff), "diff")
    elif call.text.strip():
        yield _folded("Result", replace_hidden(call.text))


def _folded(title: str, text: str) -> str:
    """Return a text that a click on its title unfolds; the middle of a long text is left out."""
    if (more := len(text) - MAX_RESULT_CHARS) > 0:
        half = MAX_RESULT_CHARS // 2
        text = f"{text[:half]}\n[… {more:,} characters omitted …]\n{text[-half:]}"
    return f"<details><summary>{title}</summary>\n\n{fenced(text)}\n\n</details>"


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TAG = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)|<(?=[/!?A-Za-z])")  # a whole code span (with group 1), or the < of a tag


def safe_markdown(text: str) -> str:
    """Return untrusted Markdown with its HTML tags escaped and its last code block closed."""
    lines, open_fence = [], ""
    for line in replace_hidden(text).split("\n"):
        fence = _FENCE.match(line)
        if not open_fence:
            open_fence = fence[1] if fence else ""
            line = line if fence else _TAG.sub(lambda found: found[0] if found[1] else "&lt;", line)
        elif fence and fence[1].startswith(open_fence) and not line.strip(" `~"):  # a closing fence names no language
            open_fence = ""
        lines.append(line)
    return "\n".join([*lines, open_fence] if open_fence else lines)


def _quoted(text: str) -> str:
    """Quote a prompt, so that headings and fences in it do not affect the rest of the document."""
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _line(text: str) -> str:
    """Return untrusted text in one line, with markup escaped."""
    text = html.escape(" ".join(replace_hidden(text).split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", text)


def usage_table(story: Story) -> str:
    rows = ["| model | requests | input | cached | output | cost |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for model, (usage, usd) in story.cost.by_model.items():
        requests = sum(reply.model == model for reply in story.replies)
        figures = (requests, usage.prompt_tokens, usage.cache_read_input_tokens, usage.output_tokens)
        rows.append(f"| {_line(model)} | {' | '.join(f'{figure:,}' for figure in figures)} | {format_cost(usd)} |")
    return "\n".join(rows)
