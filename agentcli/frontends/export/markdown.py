"""Writes a session as Markdown that reads well in a pull request: results folded, changes as diffs."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterable, Iterator

from agentcli.frontends.export.story import CallTold, Item, Prompt, Remark, Reply, Story
from agentcli.frontends.printable import pictured

LONGEST_RESULT = 20_000  # characters; a page of a pull request takes 65,536 in all


def as_markdown(story: Story) -> str:
    parts = [f"# {_line(story.title)}", _facts(story)]
    for turn in story.turns:
        before = ""  # the model that has answered so far
        for item in turn.items:
            if isinstance(item, Reply) and item.text and item.model != before:
                parts.append(f"### {_line(item.model)}")
                before = item.model
            parts += _told(item)
    parts += ["## Usage", "\n".join(_usage(story))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(story: Story) -> str:
    info, cost = story.info, money(story.cost.cost_usd)
    facts = {"Date": when(info.created), "Model": ", ".join(story.models) or "none", "Cost": cost, "Session": info.id}
    return "\n".join(f"- {name}: {_line(fact)}" for name, fact in facts.items())


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def money(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:.4f}" if usd < 1 else f"${usd:.2f}"


def _told(item: Item) -> Iterator[str]:
    match item:
        case Prompt(_, text, images, attached):
            yield f"## Prompt\n\n{_quoted(contained(text))}"
            names = [f"`{_line(name).replace('`', '')}`" for name in attached] + ["an image"] * len(images)
            yield f"Attached: {', '.join(names)}" if names else ""
        case Reply() as reply:
            yield contained(reply.text)
            for call in reply.calls:
                yield from _call(call)
        case Remark(_, text, detail):
            yield f"> **Note:** {_line(text)}"
            yield _folded("Its text", pictured(detail)) if detail else ""


def _call(call: CallTold) -> Iterator[str]:
    outcome = f" · {_line(call.outcome)}" if call.outcome else ""
    yield f"{'✗' if call.failed else '✓'} **{_line(call.title)}**{outcome}"
    if call.diff:
        yield fenced(pictured(call.diff), "diff")
    elif call.text.strip():
        yield _folded("Result", pictured(call.text))


def _folded(title: str, text: str) -> str:
    if (more := len(text) - LONGEST_RESULT) > 0:
        half = LONGEST_RESULT // 2
        text = f"{text[:half]}\n[… {more:,} characters left out …]\n{text[-half:]}"
    return f"<details><summary>{title}</summary>\n\n{fenced(text, '')}\n\n</details>"


def fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any in the text."""
    longest = max((len(fence) for fence in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TAG = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)|<(?=[/!?A-Za-z])")  # apart from those in code


def contained(text: str) -> str:
    """Somebody's Markdown: no tag of it counts, and a block of code that it leaves open ends with it."""
    lines, open_fence = [], ""
    for line in pictured(text).split("\n"):
        fence = _FENCE.match(line)
        if not open_fence:
            open_fence = fence[1] if fence else ""
            line = line if fence else _TAG.sub(lambda found: found[0] if found[1] else "&lt;", line)
        elif fence and fence[1].startswith(open_fence) and not line.strip(" `~"):
            open_fence = ""
        lines.append(line)
    return "\n".join([*lines, open_fence] if open_fence else lines)


def _quoted(text: str) -> str:
    """A prompt as a quotation: no heading and no fence in it reaches what follows."""
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _line(text: str) -> str:
    """One line of foreign text that is no markup."""
    text = html.escape(" ".join(pictured(text).split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", text)


def _usage(story: Story) -> Iterable[str]:
    yield "| model | requests | input | cached | output | cost |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    for model, (usage, usd) in story.cost.by_model.items():
        count = sum(reply.model == model for reply in story.replies)
        figures = (usage.prompt_tokens, usage.cache_read_input_tokens, usage.output_tokens)
        row = " | ".join(f"{figure:,}" for figure in (count, *figures))
        yield f"| {_line(model)} | {row} | {money(usd)} |"
