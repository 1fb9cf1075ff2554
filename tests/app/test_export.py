"""`agentcli sessions export` and `/export`: what a document holds, and what nothing in it can do."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt

from agentcli.safety.secrets.masking import Masker
from tests.app.recorded import HOSTILE, KEY, compacted_session, rich_session, says, session
from tests.app.running import Place, call

VOID = {"meta", "img", "br", "hr"}


class Page(HTMLParser):
    """What a browser would make of a page: elements with attributes, texts, and whether all is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return "".join(self.texts)


def export(place: Place, id: str, *arguments: str) -> str:
    ran = place.run("sessions", "export", id, *arguments)
    assert ran.code == 0, ran.err
    return ran.out


def test_markdown_folds_results_and_shows_changes_as_diffs(place: Place) -> None:
    text = export(place, rich_session(place))
    assert text.startswith("# Mend add")
    assert re.search(r"^- Cost: \$\d", text, re.MULTILINE)
    assert "✓ **Edit a.py** · +1 -1\n\n```diff\n--- a/a.py" in text
    assert "✗ **Edit none.py**" in text
    assert "✗ **Run curl https://example.org**" in text
    assert "> **Note:** Switched models" in text
    assert "| model | requests | input | cached | output | cost |" in text
    tokens = MarkdownIt("commonmark").parse(text)
    headings = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    assert [one for one in headings if one in ("Prompt", "Usage")] == ["Prompt", "Prompt", "Usage"]  # no open fence
    tags = {token.content.strip() for token in tokens if token.type == "html_block"}
    assert tags == {"<details><summary>Result</summary>", "</details>"}


@pytest.mark.slow
def test_json_is_what_show_prints_and_more(place: Place) -> None:
    id = rich_session(place)
    exported = json.loads(export(place, id, "--format", "json", "--raw"))
    shown = json.loads(place.run("sessions", "show", id, "--json").out)
    assert {name: exported[name] for name in shown} == shown
    assert (exported["cwd"], exported["model"].split("/")[0]) == (str(place.folder), "scripted")
    assert exported["usage"]["output_tokens"] > 50
    assert exported["version"]
    assert exported["created"] < exported["updated"]


@pytest.mark.slow
def test_nothing_that_was_reported_becomes_a_part_of_the_page(place: Place) -> None:
    file = place.folder.parent / "page.html"
    export(place, rich_session(place), "-o", str(file))
    text = file.read_text("utf-8")
    page = Page(text)
    assert page.open == []
    assert not page.of("script")
    assert not [
        name for _, attributes in page.elements for name in attributes if name.startswith("on") or name == "style"
    ]
    links = {str(attributes["href"]) for attributes in page.of("a")}
    assert links <= {"https://example.org/a", "https://evil.example/i.png"}
    assert not page.of("img")
    assert not page.of("iframe") + page.of("link") + page.of("base") + page.of("form")
    assert "<script>alert(1)</script>" in page.text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "␛[31m" in text  # shown
    policy = str(page.of("meta")[1]["content"])
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert len(page.of("details")) >= 8  # calls are folded
    assert '<span class="add">+    return a + b</span>' in text
    assert '<span class="del">-    return a - b</span>' in text
    assert "<th>a</th>" in text  # the table of an answer


@pytest.mark.slow
def test_secrets_do_not_leave(place: Place) -> None:
    (place.folder / ".env").write_text("SERVICE_PASSWORD=violet-harbour-4417\n")
    id = session(
        place,
        f"My key is {KEY} and violet-harbour-4417",
        says("", call("bash", command=f"echo {KEY}"), call("think", thought="x", password="Sup3rS3cretValue9xKq")),
        {"text": "Noted."},
    )
    for format in ("md", "json", "html"):
        ran = place.run("sessions", "export", id, "--format", format)
        assert ran.code == 0, ran.err
        assert KEY not in ran.out
        assert "violet-harbour-4417" not in ran.out
        assert Masker().secrets(ran.out) == []
        assert re.search(r"Masked possible secrets in \d+ places", ran.err)
    raw = place.run("sessions", "export", id, "--raw")
    assert KEY in raw.out
    assert raw.err == ""


@pytest.mark.slow
def test_the_ending_of_the_file_names_the_form(place: Place) -> None:
    id = session(place, "Hello", {"text": "Hi."})
    export(place, id, "-o", "a.json")
    assert json.loads((place.folder / "a.json").read_text())["session_id"] == id
    export(place, id, "-o", "a.json", "--format", "md")
    assert (place.folder / "a.json").read_text().startswith("# Hello")
    assert sorted(path.name for path in place.folder.iterdir()) == ["a.json"]
    wrong = place.run("sessions", "export", id, "-o", "a.pdf")
    assert (wrong.code, ".html" in wrong.err) == (2, True)
    lost = place.run("sessions", "export", id, "-o", "none/a.md")
    assert (lost.code, "Could not write" in lost.err) == (1, True)


@pytest.mark.slow
def test_the_slash_command_writes_each_form(place: Place) -> None:
    session(place, "Hello", {"text": "Hi."})
    for name in ("a.md", "a.html", "a.json"):
        ran = place.run("-c", "-p", f"/export {name}", "-m", place.script())
        assert f"{name}." in ran.out, ran.err
    assert (place.folder / "a.md").read_text().startswith("# Hello")
    assert Page((place.folder / "a.html").read_text()).open == []
    assert json.loads((place.folder / "a.json").read_text())["title"] == "Hello"
    assert "Unknown format .pdf" in place.run("-c", "-p", "/export a.pdf", "-m", place.script()).err


@pytest.mark.slow
def test_compactions_are_reported_with_their_text(place: Place) -> None:
    id = compacted_session(place, turns=6)
    text = export(place, id)
    assert text.count("> **Note:** The conversation was compacted (") >= 1
    assert text.count("## Prompt") == 6  # what it covers is told, too
    page = Page(export(place, id, "--format", "html"))
    assert "The conversation was compacted (" in page.text
    assert page.open == []


def test_hostile_texts_are_what_they_seem(place: Place) -> None:
    """The other tests rest on this."""
    assert "\u202e" in HOSTILE
    assert Masker().secrets(KEY)
