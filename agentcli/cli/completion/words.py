"""Prints the words that a shell completes and that change: ids of sessions, models, skills, providers.

Each line is a word, a tab and what it means. A person waits for it at each Tab, so it imports no more than it needs.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable

from agentcli.settings.load import Config, load_config
from agentcli.settings.paths import current_folder, find_paths

_SAFE = re.compile(r"[\w./:@+~-]+")  # a shell inserts it as it is
Row = tuple[str, str]


def print_words(kind: str) -> int:
    config = load_config(find_paths(os.environ.get("AGENTCLI_HOME")), current_folder(), os.environ)
    for word, meaning in _KINDS.get(kind, _nothing)(config):
        if _SAFE.fullmatch(word):
            told = "".join(letter for letter in " ".join(meaning.split()) if letter.isprintable())
            print(f"{word}\t{told[:80]}")
    return 0


def _sessions(config: Config) -> Iterable[Row]:
    """The newest of this directory."""
    if not config.paths.sessions.is_file():
        return []
    from agentcli.infra.sessions.sqlite import SqliteSessions

    store = SqliteSessions(config.paths.sessions)

    async def listed() -> list[Row]:
        try:
            return [(info.id, info.name or info.title) for info in await store.list(cwd=config.cwd)]
        finally:
            await store.close()

    return asyncio.run(listed())


def _models(config: Config) -> Iterable[Row]:
    from agentcli.models.choice import Models

    models = Models(config)
    for name in asyncio.run(models.running()):
        yield name, "here"
    for info in models.table():
        yield f"{info.provider}/{info.id}", f"window {info.window:,} tokens"


def _skills(config: Config) -> Iterable[Row]:
    from agentcli.extensions.skills.config import Skills

    catalog = Skills(config, is_bare=False, tell=lambda text: None).catalog
    return [(skill.name, skill.description) for skill in catalog]


def _providers(config: Config) -> Iterable[Row]:
    from agentcli.models.choice import Models

    return [(name, "") for name in Models(config).keys.takers()]


def _nothing(config: Config) -> Iterable[Row]:
    return ()


_KINDS: dict[str, Callable[[Config], Iterable[Row]]] = {
    "sessions": _sessions,
    "models": _models,
    "skills": _skills,
    "providers": _providers,
}
