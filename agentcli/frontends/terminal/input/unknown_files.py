"""Finds `@names` in a prompt that were very likely meant as files and name none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from agentcli.conversation.mentions import PUNCTUATION
from agentcli.errors import nearest

# At the beginning of a word: `me@example.com` is none, nor is anything in quotation marks or in code.
_NAME = re.compile(r"(?:^|(?<=[\s(]))@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<plain>[^\s\"'`,;]+))")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_PLACE = re.compile(r"[:#]L?\d+(?:[-:]L?\d+)*\Z")  # a line, which a name may not have
_OF_NO_PATH = re.compile(r"[(){}\[\]<>=|\\$*#@:?!&%]")  # calls, versions, addresses
_EXTENSIONS = frozenset(
    "py pyi ipynb js mjs cjs jsx ts tsx vue svelte html htm css scss less json jsonl json5 toml yaml yml xml ini cfg "
    "conf env lock md mdx rst txt tex csv tsv sql sh bash zsh fish ps1 bat c h cc cpp cxx hpp rs go java kt kts scala "
    "rb php pl lua swift m mm cs fs ex exs erl hs ml clj dart zig nim proto graphql tf gradle cmake mk diff log pdf "
    "png jpg jpeg gif webp svg".split()
)


class UnknownFile(Struct, frozen=True):
    """`near` is the path that was probably meant, empty when there is none."""

    name: str
    near: str = ""


class NameCheck:
    """Holds a prompt back once for each name in it that is no file.

    `paths_like` gives paths whose last part is like a name; `send_key` sends the prompt all the same.
    """

    def __init__(self, root: Path, home: Path, paths_like: Callable[[str], Iterable[str]], *, send_key: str) -> None:
        self._root, self._home, self._paths_like = root, home, paths_like
        self._send_key = send_key
        self._told: set[str] = set()  # names of the prompt that is being written
        self._held = ("", "")  # a prompt that waits for a second Enter, and why

    def holds_back(self, text: str) -> bool:
        """True if the prompt has such a name that the person has not been warned of."""
        is_prompt = not text.lstrip().startswith(("/", "!"))
        unknown = [one for one in self.unknown(text) if one.name not in self._told] if is_prompt else []
        if not unknown:
            self.forget()
            return False
        self._told |= {one.name for one in unknown}
        told = [f"@{one.name} names no file" + (f", did you mean @{one.near}?" if one.near else ".") for one in unknown]
        self._held = (text, " ".join([*told, f"{self._send_key} sends it as it is."]))
        return True

    def warning(self, text: str) -> str:
        """The reason why this prompt is held back; empty for another one."""
        return self._held[1] if self._held[0] == text and self._told else ""

    def forget(self) -> None:
        self._told.clear()

    def unknown(self, typed: str) -> list[UnknownFile]:
        """The names in a prompt that are no file or folder.

        Passes over names with another meaning: decorators, people, npm packages, addresses.
        """
        found: dict[str, UnknownFile] = {}
        for match in _NAME.finditer(_CODE.sub(" ", typed)):
            whole = match["quoted"] or match["plain"]
            name = whole if match["quoted"] else whole.rstrip(PUNCTUATION)
            if not name or self._exists(whole) or self._exists(name):
                continue
            unknown = self._judged(name)
            if unknown is not None or match["quoted"]:
                found[name] = unknown or UnknownFile(name, self._near(name))
        return list(found.values())

    def _judged(self, name: str) -> UnknownFile | None:
        """None for a name that may well mean something else."""
        without_place = _PLACE.sub("", name)
        if without_place != name and self._exists(without_place):
            return UnknownFile(name, without_place)
        if _OF_NO_PATH.search(name):
            return None
        first, _, rest = name.partition("/")
        last = name.rstrip("/").rpartition("/")[2]
        near = self._near(name)
        if not first and not near.startswith("/"):
            return None  # `@/` is the root of the sources in many projects
        is_meant = (
            ("." in last and last.rpartition(".")[2].lower() in _EXTENSIONS)
            or first in ("", "~", ".", "..")
            or (bool(rest) and near != "" and not (self._root / "node_modules" / f"@{first}").exists())
            or (rest.count("/") > 0 and (self._root / first).is_dir())
            or (not rest and near != "" and _is_slip(name, near.rpartition("/")[2].partition(".")[0]))
        )
        return UnknownFile(name, near) if is_meant else None

    def _exists(self, name: str) -> bool:
        try:
            return self._path(name).exists()
        except (OSError, ValueError):  # too long, or no path at all
            return False

    def _path(self, name: str) -> Path:
        return self._home / name[2:] if name == "~" or name.startswith("~/") else self._root / name

    def _near(self, name: str) -> str:
        """A path whose last part is nearly that of `name`, in the folder that was written or else anywhere."""
        folder, slash, last = name.rstrip("/").rpartition("/")
        try:
            beside = [f"{folder}{slash}{path.name}" for path in self._path(f"{folder}{slash}" or ".").iterdir()]
        except (OSError, ValueError):
            beside = []
        by_name = {key: path for path in [*self._paths_like(last), *beside] for key in _names(path, last)}
        found = nearest(last, by_name)
        return by_name[found] if found else ""


def _names(path: str, typed: str) -> Iterator[str]:
    """Names for a path: its last part, and for a name typed without an extension also without its own."""
    name = path.rstrip("/").rpartition("/")[2]
    yield name
    if "." not in typed and "." in name[1:]:
        yield name.partition(".")[0]


def _is_slip(typed: str, meant: str) -> bool:
    """True if two letters are swapped, or one inside the word is missing, too much or another."""
    typed, meant = typed.lower(), meant.lower()
    if len(meant) < 4 or abs(len(typed) - len(meant)) > 1 or typed[:1] != meant[:1] or typed == meant:
        return False
    start = next((n for n, (a, b) in enumerate(zip(typed, meant, strict=False)) if a != b), len(meant))
    one, other = typed[start:], meant[start:]
    if not one or not other:  # a plural, or an ending
        return False
    return (
        one[1:] == other[1:]
        or one[1:] == other
        or one == other[1:]
        or (one[:2] == other[1::-1] and one[2:] == other[2:])
    )
