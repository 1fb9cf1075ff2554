"""Writes a session as Markdown, as JSON or as one HTML page, with secrets masked.

The page needs no network, and nothing in it is executed.
"""

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

from agentcli.agent.calls.report import Mask
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.result import usage_object
from agentcli.agent.session import Session
from agentcli.agent.turn_records import turn_records
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Entry
from agentcli.conversation.history import title_of
from agentcli.errors import UsageError
from agentcli.frontends.export import markdown as markdown_export
from agentcli.frontends.json_output import wire_messages
from agentcli.frontends.printable import replace_hidden
from agentcli.llm.messages import Base64Source
from agentcli.version import __version__

Format = Literal["md", "json", "html"]
_ENDS: dict[str, Format] = {"": "md", ".md": "md", ".markdown": "md", ".json": "json", ".html": "html", ".htm": "html"}


def format_of(file: str) -> Format:
    """Return the format for a file's ending, Markdown if it has none. Raises `UsageError` for other endings."""
    ending = Path(file).suffix.lower()
    if ending not in _ENDS:
        raise UsageError(f"Unknown format {ending}. Use .md, .json or .html.")
    return _ENDS[ending]


def document(format: Format, info: SessionInfo, entries: Sequence[Entry], mask: Mask | None) -> tuple[str, int]:
    """Return the document, and the number of masked secrets. Takes seconds for a long session."""
    masked_count = 0
    if mask:
        value, masked_count = mask.document_value(msgspec.to_builtins({"info": info, "entries": list(entries)}))
        info, entries = msgspec.convert(value["info"], SessionInfo), msgspec.convert(value["entries"], list[Entry])
    story = markdown_export.story_of(info, entries)
    match format:
        case "md":
            text = markdown_export.as_markdown(story)
        case "html":
            text = as_page(story)
        case "json":
            text = _as_json(story, entries)
    return text, masked_count


def _as_json(story: markdown_export.Story, entries: Sequence[Entry]) -> str:
    info, total = story.info, story.cost.total
    value = {
        "session_id": info.id,
        **{name: getattr(info, name) for name in ("cwd", "name", "title", "created", "updated")},
        "model": story.models[-1] if story.models else "",
        **as_dict(info, entries),
        "usage": usage_object(total.usage) | {"cost_usd": total.full_cost_usd},
        "version": __version__,
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


async def live_document(session: Session, file: str, stored: Sequence[SessionInfo]) -> str:
    """Return the conversation of an open session in the format for the file's ending. Raises `UsageError`."""
    format, services, entries = format_of(file), session.runtime.calls.services, session.snapshot().conversation.entries
    cwd, title, now = str(services.workspace.cwd), title_of(entries), time.time()
    begun_at = entries[0].time if entries else now
    unstored = SessionInfo(session.id, cwd, title, created=begun_at, updated=now, entries=len(entries))
    info = next((info for info in stored if info.id == session.id), unstored)
    await services.load_secrets()  # the mask may not know all secrets of the workspace yet
    text, _ = await asyncio.to_thread(document, format, info, tuple(entries), services.mask)
    return text


def as_dict(info: SessionInfo, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return a session as plain values: the messages that the next request would send, all entries, all turns."""
    conversation = Conversation(entries)
    parts = msgspec.to_builtins({"entries": list(entries), "turns": turn_records(conversation.path)})
    return {"session_id": info.id, "messages": wire_messages(conversation.valid_messages()), **parts}


_SAFE_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_IMAGE = re.compile(r"image/(?:png|jpeg|gif|webp)")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*")


def as_page(story: markdown_export.Story) -> str:
    total = story.cost.total.usage
    tokens = f"{total.prompt_tokens:,} in ({total.cache_read_input_tokens:,} cached), {total.output_tokens:,} out"
    fields = markdown_export.header_fields(story) | {"Tokens": tokens, "Folder": story.info.cwd}
    rows = "".join(f"<dt>{name}</dt><dd>{line(fact)}</dd>" for name, fact in fields.items())
    usage = markdown().render(markdown_export.usage_table(story)) if len(story.cost.by_model) > 1 else ""
    parts = [f"<header><h1>{line(story.title)}</h1><dl>{rows}</dl></header>{usage}<main>"]
    for turn in story.turns:
        parts += ("<section>", *(part for item in turn for part in _format_item(item)), "</section>")
    return html_page(story.title, f"{''.join(parts)}</main>")


def html_page(title: str, body: str) -> str:
    """Return a page whose content security policy allows its own style sheet and no scripts."""
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{line(title)}</title><style>{style}</style></head><body>{body}</body></html>\n"
    )


def line(text: str) -> str:
    """Return untrusted text for a page, in one line."""
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Return untrusted text for a page, with visible symbols for control characters and other hidden ones."""
    return escape(replace_hidden(text))


def _format_item(item: markdown_export.Item) -> Iterator[str]:
    match item:
        case markdown_export.PromptItem(time, text, images, attached):
            more = f" · with {line(', '.join(attached))}" if attached else ""
            yield f'<div class="meta">{markdown_export.format_time(time)}{more}</div>'
            yield f'<div class="prompt">{_escaped(text)}</div>'
            yield from _images(images)
        case markdown_export.Reply() as reply:
            yield _folded("Thinking", reply.thinking)
            rendered: str = markdown().render(replace_hidden(reply.text))
            yield rendered.replace("<a href=", '<a rel="noopener noreferrer nofollow" href=')
            for call in reply.calls:
                yield from _format_call(call)
            took = f"{reply.body.duration_ms / 1000:.1f} s"
            cut = " · interrupted" if reply.body.stop_reason == "interrupted" else ""
            cost = markdown_export.format_cost(reply.body.cost_usd)
            yield f'<div class="meta">{line(reply.model)} · {took} · {cost}{cut}</div>'
        case markdown_export.Remark(text, detail):
            yield f'<div class="remark">{_escaped(text)}</div>{_folded("Its text", detail)}'


def _folded(title: str, text: str) -> str:
    """Return a text that a click on its title unfolds; empty if there is no text. The title is not escaped."""
    return f"<details><summary>{title}</summary><div>{_escaped(text)}</div></details>" if text else ""


def _format_call(call: markdown_export.CallItem) -> Iterator[str]:
    sign, attribute = ("✗", ' class="failed"') if call.is_failed else ("✓", "")
    outcome = f" <small>{line(call.outcome)}</small>" if call.outcome else ""
    yield f"<details{attribute}><summary>{sign} {line(call.title)}{outcome}</summary>"
    yield f"<pre>{''.join(_diff(call.diff)) if call.diff else _escaped(call.text)}</pre>"
    yield from _images(call.images)
    yield "</details>"


_LINE_CLASSES = {"+": "add", "-": "del", "@": "hunk"}  # a line's first character -> its class in page.css


def _diff(diff: str) -> Iterable[str]:
    for text in replace_hidden(diff).rstrip("\n").split("\n"):
        kind = "hunk" if text.startswith(("+++ ", "--- ")) else _LINE_CLASSES.get(text[:1], "")
        yield f'<span class="{kind}">{escape(text)}</span>\n' if kind else f"{escape(text)}\n"


def _images(images: Sequence[Base64Source]) -> Iterator[str]:
    for image in images:
        if _IMAGE.fullmatch(image.media_type) and _BASE64.fullmatch(image.data):
            yield f'<img alt="" loading="lazy" src="data:{image.media_type};base64,{image.data}">'


def _cell(_: object, tokens: Sequence[Token], index: int, *_more: object) -> str:
    """Render a cell's alignment as a class: the page's policy forbids the style attribute that the library uses."""
    token = tokens[index]
    return f'<{token.tag} class="n">' if token.attrGet("style") == "text-align:right" else f"<{token.tag}>"


class _PageMarkdown(MarkdownIt):
    """Renders Markdown without raw HTML and images, and only with links that match a pattern."""

    def __init__(self, links: re.Pattern[str]) -> None:
        super().__init__("commonmark", {"html": False})
        self._links = links
        self.enable(["table", "strikethrough"]).disable("image")
        self.add_render_rule("table_open", lambda *_: '<div class="table"><table>')
        self.add_render_rule("table_close", lambda *_: "</table></div>")
        self.add_render_rule("th_open", _cell)
        self.add_render_rule("td_open", _cell)

    def validateLink(self, url: str) -> bool:  # noqa: N802  # the library's name
        return self._links.match(url) is not None


@cache
def markdown(links: re.Pattern[str] = _SAFE_LINK) -> MarkdownIt:
    return _PageMarkdown(links)
