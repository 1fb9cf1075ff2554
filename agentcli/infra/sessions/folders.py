"""Names a session's folder in text, which the tables and JSON want."""

from __future__ import annotations

from pathlib import Path


def folder_text(folder: Path) -> str:
    """The path; where it is no UTF-8 its `file:` address, which no path of another folder equals."""
    text = str(folder)
    try:
        text.encode()
    except UnicodeEncodeError:
        return folder.absolute().as_uri()
    return text
