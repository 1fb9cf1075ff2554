"""Writes docs/settings.md from the settings themselves: python docs/make_settings.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentcli.settings.check import allowed_values, is_table
from agentcli.settings.load import NOT_FROM_PROJECTS
from agentcli.settings.structs import Settings
from agentcli.settings.terminal import COLOUR_NAMES, COLOURS, ROLES, KeySettings

HEAD = """# Settings

```sh
agentcli config set retry.max 5        # change one
agentcli config show                   # what is set, and where
agentcli config import                 # take over those of other tools
```

The later of these counts more: defaults < user `config.toml` < project `.agentcli/config.toml` (once trusted) < `.agentcli/config.local.toml` <
`--settings FILE` < environment < flags. `agentcli config path` says where the files are, `agentcli config show` what is set.
Every setting below but keys and themes is also an environment variable, `AGENTCLI_<SECTION>_<KEY>` (lists separated by commas), and
`AGENTCLI_MODEL` is `provider.model`. `AGENTCLI_HOME` moves settings, state and cache under one folder. Lists of rules add up. A
project's files may not set {not_from_projects}.
`agentcli config trust` shows them, and in a terminal asks before it trusts them (`--yes` does not ask). In a session `/trust` does the same,
and uses them at once: their rules, hooks, servers, commands, skills and agents. Nothing of them needs a new start; what you allowed for the session is asked again.

`agentcli config set KEY VALUE` reads the value as TOML; strings need no quotes. The setting goes into your `config.toml`, with `--scope project` into `.agentcli/config.toml` and with `--scope local`
into `.agentcli/config.local.toml`, which count after `agentcli config trust`. Comments and layout of the file stay; a wrong key or
value is explained, and changes nothing. `agentcli config get KEY` prints the value that counts here, and with `--json` its source;
keys and other secrets are masked.

A wrong value is an error that names its source (a flag, a variable, or a file, in TOML with the line) and its key, and lists the
values there are. A variable of that form that is no setting is a warning; an empty one counts as unset.

## From other tools

`agentcli config import` takes over what you told Claude Code, Codex, Gemini CLI, opencode, Cursor, Copilot CLI, goose and aider, with `--project` what a
project has for them: [moving-in.md](moving-in.md#settings) has a table of what is taken. It shows what it would write, and what it leaves out with the reason, and asks; `--yes` writes without asking, and without a terminal
and without `--yes` nothing is written. What is set already stays as it is, comments included; lists of rules, folders and hooks are
added to. Keys and tokens are never copied: `agentcli login` keeps them.

## All settings

This page is written by `python docs/make_settings.py`; a test compares it with the program.
"""

THEMES = f"""## [terminal.themes.NAME]

A theme of your own, `theme = "NAME"`: a colour for each role that shall differ. A colour is `"#rrggbb"` (the nearest of 256
where the terminal does not say that it has them all), a number from 0 to 255, or one of {", ".join(f"`{name}`" for name in COLOUR_NAMES)}.

Roles: {", ".join(f"`{role}`" for role in ROLES)}. Roles without a colour of their own share {", ".join(f"`{name}`" for name in COLOURS[:-1])} and
`{COLOURS[-1]}`, which can be set the same way.

```toml
[terminal.themes.mine]
blue = "#5f87ff"
keyword = 176
comment = "bright-black"
```
"""


def page() -> str:
    *names, last = (f"`{name}`" for name in NOT_FROM_PROJECTS)
    parts = [HEAD.replace("{not_from_projects}", f"{', '.join(names)} or {last}")]
    for group in msgspec.structs.fields(Settings):
        if not (isinstance(group.type, type) and issubclass(group.type, msgspec.Struct)):
            continue
        parts.append(_table(group.name, group.type))
        if group.name == "terminal":
            parts += [_table("terminal.keys", KeySettings), THEMES]
    parts.append(
        "## [providers.NAME]\n\n`base_url`, `api_key_env`, `api_key_helper`, `key_header`, `needs_key`, `headers`, `quirks`: see "
        "[providers.md](providers.md).\n"
    )
    parts.append(
        '## [models.PROVIDER."ID"]\n\nRows like those of `agentcli/llm/models.json`: `window`, `max_output`, `prices`, '
        "`thinking`, `takes_effort`, `takes_temperature`, `takes_images`, `small`, `token_factor`, `api`.\n"
    )
    return "\n".join(parts)


def _table(name: str, kind: type[msgspec.Struct]) -> str:
    doc = " ".join((kind.__doc__ or "").split())
    doc = "" if doc.startswith(kind.__name__) else f"{doc}\n\n"
    rows = [
        f"| `{field.encode_name}` | {_values(field)} | {_default(field)} |"
        for field in msgspec.structs.fields(kind)
        if not is_table(field.type)
    ]
    return f"## [{name}]\n\n{doc}| key | values | default |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _values(field: msgspec.structs.FieldInfo) -> str:
    return ", ".join(f"`{value}`" for value in allowed_values(field.type))


def _default(field: msgspec.structs.FieldInfo) -> str:
    value: Any = field.default
    if isinstance(value, tuple) and value:
        return ", ".join(f"`{item}`" for item in value)
    return (
        "unset"
        if value in (None, "", (), msgspec.NODEFAULT)
        else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(page(), "utf-8")
