"""Writes a session as Markdown for a pull request: results folded, changes as diffs."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator

from agentcli.frontends.export.story import CallItem, Item, PromptItem, Remark, Reply, Story
from agentcli.frontends.printable import pictured

MAX_RESULT_CHARS = 20_000  # a page of a pull request takes 65,536 in all


def as_markdown(story: Story) -> str:
    parts = [f"# {_line(story.title)}", "\n".join(f"- {name}: {_line(fact)}" for name, fact in facts(story).items())]
    for turn in story.turns:
        model = ""  # that has answered so far
        for item in turn:
            if isinstance(item, Reply) and item.text and item.model != model:
                parts.append(f"### {_line(item.model)}")
                model = item.model
            parts += _item(item)
    parts += ["## Usage", usage_table(story)]
    return "\n\n".join(part for part in parts if part) + "\n"


def facts(story: Story) -> dict[str, str]:
    model, cost = ", ".join(story.models) or "none", money(story.cost.total.whole_usd)
    return {"Date": when(story.info.created), "Model": model, "Cost": cost, "Session": story.info.id}


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def money(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:.4f}" if usd < 1 else f"${usd:.2f}"


def _item(item: Item) -> Iterator[str]:
    match item:
        case PromptItem(_, text, images, attached):
            yield f"## Prompt\n\n{_quoted(contained(text))}"
            names = [f"`{_line(name).replace('`', '')}`" for name in attached] + ["an image"] * len(images)
            yield f"Attached: {', '.join(names)}" if names else ""
        case Reply() as reply:
            yield contained(reply.text)
            for call in reply.calls:
                yield from _call(call)
        case Remark(text, detail):
            yield f"> **Note:** {_line(text)}"
            yield _folded("Its text", pictured(detail)) if detail else ""


def _call(call: CallItem) -> Iterator[str]:
    outcome = f" · {_line(call.outcome)}" if call.outcome else ""
    yield f"{'✗' if call.failed else '✓'} **{_line(call.title)}**{outcome}"
    if call.diff:
        yield fenced(pictured(call.diff), "diff")
    elif call.text.strip():
        yield _folded("Result", pictured(call.text))


def _folded(title: str, text: str) -> str:
    if (more := len(text) - MAX_RESULT_CHARS) > 0:
        half = MAX_RESULT_CHARS // 2
        text = f"{text[:half]}\n[… {more:,} characters left out …]\n{text[-half:]}"
    return f"<details><summary>{title}</summary>\n\n{fenced(text, '')}\n\n</details>"


def fenced(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any in the text."""
    fence = "`" * (max(map(len, re.findall(r"`{3,}", text)), default=2) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TAG = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)|<(?=[/!?A-Za-z])")  # apart from those in code


def contained(text: str) -> str:
    """Return foreign Markdown so that no tag of it counts, and a block of code that it leaves open ends with it."""
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
    """Quote a prompt: no heading and no fence in it reaches what follows."""
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _line(text: str) -> str:
    """Return foreign text in one line, without markup."""
    text = html.escape(" ".join(pictured(text).split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", text)


def usage_table(story: Story) -> str:
    rows = ["| model | requests | input | cached | output | cost |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for model, (usage, usd) in story.cost.by_model.items():
        requests = sum(reply.model == model for reply in story.replies)
        figures = (requests, usage.prompt_tokens, usage.cache_read_input_tokens, usage.output_tokens)
        rows.append(f"| {_line(model)} | {' | '.join(f'{figure:,}' for figure in figures)} | {money(usd)} |")
    return "\n".join(rows)
