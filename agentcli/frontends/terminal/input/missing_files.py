"""Finds `@names` in a prompt that were very likely meant as files and name none."""

from __future__ import annotations

import re
from pathlib import Path

from agentcli.conversation.mentions import PUNCTUATION

# At the beginning of a word: `me@example.com` is none, nor is anything in quotation marks or in code.
_NAME = re.compile(r"(?:^|(?<=[\s(]))@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<plain>[^\s\"'`,;]+))")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_LINES = re.compile(r":\d+(?:-\d+)?\Z")  # those that are attached
_ANCHOR = re.compile(r"#L?\d+(?:-L?\d+)?\Z")
_NO_PATH = re.compile(r"[(){}\[\]<>=|\\$*#@:?!&%]")  # in calls, versions, addresses
_EXTENSIONS = frozenset(
    "py pyi ipynb js mjs cjs jsx ts tsx vue svelte html htm css scss less json jsonl json5 toml yaml yml xml ini cfg "
    "conf env lock md mdx rst txt tex csv tsv sql sh bash zsh fish ps1 bat c h cc cpp cxx hpp rs go java kt kts scala "
    "rb php pl lua swift m mm cs fs ex exs erl hs ml clj dart zig nim proto graphql tf gradle cmake mk diff log pdf "
    "png jpg jpeg gif webp svg".split()
)


def missing_files(typed: str, folder: Path) -> list[str]:
    """The names in a prompt that are no file or folder, but for decorators, people, packages and addresses."""
    found = list(_NAME.finditer(_CODE.sub(" ", typed)))
    names = {match["quoted"] or match["plain"].rstrip(PUNCTUATION): bool(match["quoted"]) for match in found}
    return [name for name, is_quoted in names.items() if name and _is_missing(name, folder, is_quoted=is_quoted)]


def _is_missing(name: str, folder: Path, *, is_quoted: bool) -> bool:
    if _exists(name, folder) or _exists(_LINES.sub("", name), folder):
        return False
    if is_quoted or (_ANCHOR.search(name) and _exists(_ANCHOR.sub("", name), folder)):
        return True
    if name.startswith("/") or _NO_PATH.search(name):
        return False
    first, *rest = name.split("/")
    extension = name.rstrip("/").rpartition("/")[2].rpartition(".")[2]
    return (
        first in ("~", ".", "..")
        or ("." in name and extension.lower() in _EXTENSIONS)
        or (len(rest) > 1 and _exists(first, folder))
    )


def _exists(name: str, folder: Path) -> bool:
    try:
        return (folder / Path(name).expanduser()).exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, nobody's home folder
        return False
