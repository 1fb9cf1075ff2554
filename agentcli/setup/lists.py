"""Checks the settings that are lists of names."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentcli.settings.load import Config


def check_lists(config: Config) -> None:
    """Raises `ConfigError` for a host, a path or the name of a variable that can be none."""
    settings = config.settings
    sandbox, folders = settings.sandbox, settings.permissions.additional_directories
    lists: tuple[tuple[str, tuple[str, ...], Callable[[str], object]], ...] = (
        ("sandbox.hosts", sandbox.hosts, _check_host),
        ("web.hosts", settings.web.hosts, _check_host),
        ("sandbox.environment", sandbox.environment, _check_variable),
        ("sandbox.masked", sandbox.masked, _check_path),
        ("sandbox.writable", sandbox.writable, _check_path),
        ("permissions.additional_directories", folders, _check_path),
    )
    for key, items, check in lists:
        for item in items:
            try:
                check(item)
            except ValueError as error:
                raise config.error(str(error), key, item=item) from error


def _check_host(name: str) -> None:
    from agentcli.infra.sandbox.network.host_grants import read_grant

    read_grant(name)


def _check_variable(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not the name of a variable: write letters, digits and _.")


def _check_path(name: str) -> None:
    if not name.strip() or "\0" in name:
        raise ValueError(f"{name!r} is no path: write the path of a file or a folder.")
