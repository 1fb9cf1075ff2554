"""Judges programs that list an archive or print what is packed, as long as they write no file.

From the manuals of GNU tar 1.34, bsdtar 3.7, Info-ZIP 6, gzip 1.12: no option here writes, or starts a program of
somebody's choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from agentcli.safety.commands.programs.options import options, read_arguments, without_pattern
from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.reader.syntax import Field

# The options each program may have, and those of which it needs one. Operands are an archive and names inside it.
_LISTING = {
    "tar": ("content -tvzjJ -f@ --list --verbose --gzip --bzip2 --xz --zstd --file@", ("-t", "--list")),
    "unzip": ("content -lqv", ("-l",)),
    "zipinfo": ("content -12hlmMstTvz", ()),
}
_UNPACKING = "content -cdfklqtv --decompress --force --keep --list --quiet --stdout --test --to-stdout --verbose"
_PRINTING = ("-c", "-l", "-t", "--list", "--stdout", "--test", "--to-stdout")
_PACKED = {
    "gunzip": (_UNPACKING, _PRINTING),
    "gzip": (_UNPACKING, _PRINTING),
    "zcat": ("content", ()),
    "zgrep": ("search -cEFGhHilLnoqsvwx -e: -m: -A: -B: -C:", ()),
}
# Names of archives, so neither one on another machine (`host:a.tar`) nor a glob that unzip would expand.
_ARCHIVE = re.compile(r"[\w@+,./-]+\.(tar(\.\w+)?|t[bgx]z2?|tbz2|tzst|zip|jar|war|ear|aar|apk|whl|egg|xpi|crate|nupkg)")


def _lists(name: str) -> Callable[[Sequence[Field], ReadCheck], str]:
    row, needed = _LISTING[name]

    def problem(arguments: Sequence[Field], check: ReadCheck) -> str:
        read = read_arguments(_with_dash(arguments) if name == "tar" else arguments, options(row))
        archives = read.files if name == "tar" else read.operands[:1]
        if read.problem:
            return read.problem
        if needed and not set(needed) & set(read.given):
            return f"{name} unpacks files"
        if not archives or not all(_ARCHIVE.fullmatch(field.text) for field in archives):
            return f"what {name} opens is not called an archive"
        return check.problem([*read.operands, *read.files], "content")

    return problem


def _with_dash(arguments: Sequence[Field]) -> Sequence[Field]:
    """`tar tf` as `tar -tf`. In the old form values follow in the order of the letters; here one letter has one."""
    if arguments and re.fullmatch(r"[tvzjJ]+f", arguments[0].text):
        return [Field(f"-{arguments[0].text}"), *arguments[1:]]
    return arguments


def _prints(name: str) -> Callable[[Sequence[Field], ReadCheck], str]:
    row, needed = _PACKED[name]

    def problem(arguments: Sequence[Field], check: ReadCheck) -> str:
        read = read_arguments(arguments, options(row))
        if read.problem:
            return read.problem
        if needed and not set(needed) & set(read.given):
            return f"{name} replaces files"
        files = without_pattern(read.operands) if name == "zgrep" and "-e" not in read.given else read.operands
        if name == "zgrep" and any(field.is_glob for field in files):
            return "zgrep is a script that a file's name can break"
        inside = [Field(field.text.removesuffix(".gz"), field.is_glob) for field in files]
        return check.problem([*files, *inside], "content")

    return problem


ARCHIVES: dict[str, Callable[[Sequence[Field], ReadCheck], str]] = {
    **{name: _lists(name) for name in _LISTING},
    **{name: _prints(name) for name in _PACKED},
}
