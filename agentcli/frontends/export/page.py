"""Writes a session as one HTML page, which needs no network and runs nothing of what it shows."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from agentcli.frontends.export.markdown import money, when
from agentcli.frontends.export.story import CallTold, Item, Prompt, Remark, Reply, Story, TurnTold
from agentcli.frontends.export.timeline import timeline
from agentcli.frontends.printable import pictured
from agentcli.llm.messages import Base64Source

_SAFE_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_IMAGE = re.compile(r"image/(?:png|jpeg|gif|webp)")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*")


def as_page(story: Story) -> str:
    style, script = _beside("page.css"), _beside("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{_line(story.title)}</title><style>{style}</style></head><body>",
            *_head(story),
            "<main>",
            *(part for turn in story.turns for part in _turn(turn)),
            f"</main><script>{script}</script></body></html>\n",
        )
    )


@cache
def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _text(text: str) -> str:
    return escape(pictured(text))


def _line(text: str) -> str:
    return _text(" ".join(text.split()))


def _head(story: Story) -> Iterator[str]:
    info, total = story.info, story.cost.total
    facts = {
        "Date": when(info.created),
        "Model": ", ".join(story.models) or "none",
        "Cost": money(story.cost.cost_usd),
        "Tokens": f"{total.prompt_tokens:,} in ({total.cache_read_input_tokens:,} cached), {total.output_tokens:,} out",
        "Folder": info.cwd,
        "Session": info.id,
    }
    rows = "".join(f"<dt>{name}</dt><dd>{_line(fact)}</dd>" for name, fact in facts.items())
    yield f"<header><h1>{_line(story.title)}</h1><dl>{rows}</dl></header>"
    if drawn := timeline(story):
        kinds = {"request": "request", "call": "call", "failed": "failed call", "cost": "cost so far"}
        legend = "".join(f'<i class="{kind}"></i>{name}' for kind, name in kinds.items())
        yield f"<figure>{drawn}<figcaption>{legend}</figcaption></figure>"
    yield _usage(story)
    yield '<nav><button hidden value="open">Unfold all</button><button hidden value="">Fold all</button></nav>'


def _usage(story: Story) -> str:
    if len(story.cost.by_model) < 2:
        return ""
    head = "".join(f"<th>{name}</th>" for name in ("model", "in", "out", "cost"))
    rows = "".join(
        f'<tr><td>{_line(model)}</td><td class="n">{usage.prompt_tokens:,}</td><td class="n">{usage.output_tokens:,}'
        f'</td><td class="n">{money(usd)}</td></tr>'
        for model, (usage, usd) in story.cost.by_model.items()
    )
    return f'<div class="table"><table><tr>{head}</tr>{rows}</table></div>'


def _turn(turn: TurnTold) -> Iterator[str]:
    yield f'<section id="t{turn.number}">'
    for item in turn.items:
        yield from _told(item)
    yield "</section>"


def _told(item: Item) -> Iterator[str]:
    match item:
        case Prompt(time, text, images, attached):
            more = f" · with {_line(', '.join(attached))}" if attached else ""
            yield f'<div class="meta">{when(time)}{more}</div><div class="prompt">{_text(text)}</div>'
            yield from _images(images)
        case Reply() as reply:
            if reply.thinking:
                yield f"<details><summary>Thinking</summary><div>{_text(reply.thinking)}</div></details>"
            yield _rendered(reply.text)
            for call in reply.calls:
                yield from _call(call)
            took = f"{reply.body.duration_ms / 1000:.1f} s"
            cut = " · interrupted" if reply.body.stop_reason == "interrupted" else ""
            yield f'<div class="meta">{_line(reply.model)} · {took} · {money(reply.body.cost_usd)}{cut}</div>'
        case Remark(_, text, detail):
            yield f'<div class="remark">{_text(text)}</div>'
            if detail:
                yield f"<details><summary>Its text</summary><div>{_text(detail)}</div></details>"


def _call(call: CallTold) -> Iterator[str]:
    sign, kind = ("✗", ' class="failed"') if call.failed else ("✓", "")
    outcome = f" <small>{_line(call.outcome)}</small>" if call.outcome else ""
    yield f"<details{kind}><summary>{sign} {_line(call.title)}{outcome}</summary>"
    yield f"<pre>{''.join(_diff(call.diff)) if call.diff else _text(call.text)}</pre>"
    yield from _images(call.images)
    yield "</details>"


_LINES = {"+": "add", "-": "del", "@": "hunk"}


def _diff(diff: str) -> Iterable[str]:
    for line in pictured(diff).rstrip("\n").split("\n"):
        kind = "hunk" if line.startswith(("+++ ", "--- ")) else _LINES.get(line[:1], "")
        yield f'<span class="{kind}">{escape(line)}</span>\n' if kind else f"{escape(line)}\n"


def _images(images: Sequence[Base64Source]) -> Iterator[str]:
    for image in images:
        if _IMAGE.fullmatch(image.media_type) and _BASE64.fullmatch(image.data):
            yield f'<img alt="" loading="lazy" src="data:{image.media_type};base64,{image.data}">'


class _Markdown(MarkdownIt):
    """Takes no HTML, loads no images, and knows links to the web alone."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"html": False})
        self.enable(["table", "strikethrough"]).disable("image")
        self.add_render_rule("table_open", lambda *_: '<div class="table"><table>')
        self.add_render_rule("table_close", lambda *_: "</table></div>")

    def validateLink(self, url: str) -> bool:  # noqa: N802  # the library's name
        return _SAFE_LINK.match(url) is not None


@cache
def _markdown() -> _Markdown:
    return _Markdown()


def _rendered(text: str) -> str:
    """Markdown of a model as HTML."""
    made: str = _markdown().render(pictured(text))
    return made.replace("<a href=", '<a rel="noopener noreferrer nofollow" href=')
