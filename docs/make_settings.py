"""Writes docs/settings.md from the settings themselves: python docs/make_settings.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentcli.config import NOT_FROM_PROJECTS, Settings, allowed_values

HEAD = """# Settings

Defaults < user `config.toml` < project `.agentcli/config.toml` (once trusted) < `.agentcli/config.local.toml` <
`--settings FILE` < environment < flags. `agentcli config path` says where the files are, `agentcli config show` what is set.
Every setting below is also an environment variable, `AGENTCLI_<SECTION>_<KEY>` (lists separated by commas), and
`AGENTCLI_MODEL` is `provider.model`. `AGENTCLI_HOME` moves settings, state and cache under one folder. Lists of rules add up. A
project's files may not set {not_from_projects}.

A wrong value is an error that names its source (a flag, a variable, or a file and line) and its key, and lists the values there
are. A variable of that form that is no setting is a warning; an empty one counts as unset.

This page is written by `python docs/make_settings.py`; a test compares it with the program.
"""


def page() -> str:
    *names, last = (f"`{name}`" for name in NOT_FROM_PROJECTS)
    parts = [HEAD.replace("{not_from_projects}", f"{', '.join(names)} or {last}")]
    for group in msgspec.structs.fields(Settings):
        if not (isinstance(group.type, type) and issubclass(group.type, msgspec.Struct)):
            continue
        doc = " ".join((group.type.__doc__ or "").split())
        doc = "" if doc.startswith(group.type.__name__) else f"{doc}\n\n"
        rows = [
            f"| `{field.name}` | {_values(field)} | {_default(field)} |" for field in msgspec.structs.fields(group.type)
        ]
        parts.append(f"## [{group.name}]\n\n{doc}| key | values | default |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    parts.append(
        "## [providers.NAME]\n\n`base_url`, `api_key_env`, `needs_key`, `headers`, `quirks`: see [providers.md](providers.md).\n"
    )
    parts.append(
        '## [models.PROVIDER."ID"]\n\nRows like those of `agentcli/llm/models.toml`: `window`, `max_output`, `prices`, '
        "`thinking`, `takes_effort`, `takes_temperature`, `takes_images`, `small`, `token_factor`.\n"
    )
    return "\n".join(parts)


def _values(field: msgspec.structs.FieldInfo) -> str:
    return ", ".join(f"`{value}`" for value in allowed_values(field.type))


def _default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    return (
        "unset"
        if value in (None, "", (), msgspec.NODEFAULT)
        else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(page(), "utf-8")
