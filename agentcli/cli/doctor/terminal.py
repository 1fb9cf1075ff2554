"""Checks the terminal: what it is, its encoding, its colours."""

from __future__ import annotations

import locale
from collections.abc import Iterator

from agentcli.cli.doctor.finding import Check, Said, Subject, warning


def terminal(subject: Subject) -> Iterator[Said]:
    kind = subject.config.environment.get("TERM", "")
    if kind in ("", "dumb"):
        told = "TERM is not set" if not kind else "TERM is dumb"
        yield warning(
            f"{told}: a session is shown line by line.", "export TERM=xterm-256color, if your terminal is one"
        )


def encoding(subject: Subject) -> Iterator[Said]:
    if (name := locale.getencoding()).upper().replace("-", "") != "UTF8":
        yield warning(
            f"Text is encoded as {name} here: much of what models write cannot be shown.",
            "export LC_ALL=C.UTF-8 (or your language's UTF-8 locale; locale -a lists them)",
        )


def colours(subject: Subject) -> Iterator[Said]:
    if subject.config.environment.get("NO_COLOR"):
        yield warning("NO_COLOR is set: nothing is coloured, code and changes included.", "unset NO_COLOR")


CHECKS: dict[str, Check] = {"terminal": terminal, "encoding": encoding, "colours": colours}
