"""Holds the web page: plain HTML, CSS and JavaScript, as they are sent."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

PAGE_FILES = ("page.css", "page.js", "markdown.js", "questions.js", "stream.js", "view.js")
_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


@cache
def page_file(name: str) -> tuple[bytes, str]:
    """A file of the page, and its media type."""
    return files(__package__).joinpath(name).read_bytes(), _KINDS[name.rpartition(".")[2]]
