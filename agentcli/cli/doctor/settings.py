"""Checks the settings: files that cannot be read, variables that mean nothing, a project that is not trusted."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from agentcli.cli.doctor.finding import Check, Said, Subject, ok, problem, warning
from agentcli.errors import ConfigError
from agentcli.setup.lists import check_lists


def settings(subject: Subject) -> Iterator[Said]:
    config = subject.config
    if subject.unread is not None:
        mend = "Correct it there (docs/settings.md lists all settings); which model answers is looked at after that."
        yield problem(str(subject.unread), mend)
        return
    told: list[str] = []
    try:
        check_lists(config)
        subject.builder(told.append).tool_registry()
        _ = subject.models.encoders
    except ConfigError as error:
        yield problem(str(error), "Correct it there: docs/settings.md lists all settings.")
    for notice in config.notices:  # each says what to do behind its last colon
        what, _, mend = notice.rpartition(": ")
        yield warning(f"{what}.", f"{mend[:1].upper()}{mend[1:]}")
    if (file := config.paths.user_config).is_file() and file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield warning(f"Others can change {file}.", f"chmod 600 {file}")
    yield ok(", ".join(map(str, config.files)) or "defaults")


CHECKS: dict[str, Check] = {"settings": settings}
