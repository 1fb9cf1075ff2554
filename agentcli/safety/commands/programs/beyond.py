"""Tells which programs act beyond the workspace, on the machine or on others: `beyond.ini` beside this module."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from agentcli.safety.commands.programs.tables import read_table
from agentcli.safety.commands.reader.syntax import Field

_TABLES = read_table("beyond")
_ALWAYS = frozenset(name for names in _TABLES["always"].values() for name in names.split())
# Of these only the subcommands that fetch or send something.
_SUBCOMMANDS = {name: words.split() for name, words in _TABLES["subcommands"].items()}

# Tools that projects install for themselves: npx fetches one only where it is missing, which a try does not let it do.
_PROJECT_TOOLS = frozenset(
    "ava babel biome c8 eslint esbuild jest knip mocha nyc prettier rollup stylelint svelte-check tap ts-node tsc tsx "
    "typedoc vite vitest vue-tsc webpack".split()
)
_NPX_OPTIONS = frozenset("-y --yes --no --no-install --offline --prefer-offline --quiet -q --".split())

# Where installers fetch from unless they are told otherwise.
_REGISTRIES = {name: tuple(hosts.split()) for names, hosts in _TABLES["registries"].items() for name in names.split()}
_RUNNERS = frozenset("npx bunx pnpx uvx pipx".split())  # fetch what they are to run

# Options before a subcommand that take the next word.
_WITH_VALUE = frozenset("-C -c --git-dir --work-tree --prefix --cwd --dir --directory --project --config".split())


def beyond_workspace(fields: Sequence[Field]) -> str:
    """The reason to ask before such a command runs, or an empty string."""
    name, subcommand = _called(fields)
    if name == "parallel":
        if any(field.text.startswith(("-S", "--sshlogin")) for field in fields):
            return "parallel runs on other machines"
        rest = [*itertools.dropwhile(lambda field: field.text.startswith("-"), fields[1:])]
        return beyond_workspace(rest) if rest else ""
    if name in _ALWAYS:
        return f"{name} acts beyond the workspace"
    if {"-g", "--global", "--system"} & {field.text for field in fields} and (
        name in _REGISTRIES or subcommand == "config"
    ):
        return f"{name} {subcommand} changes what is beyond the workspace"
    if subcommand == "exec" and name in ("pnpm", "yarn"):  # fetch nothing for it
        behind = fields[[field.text for field in fields].index("exec") + 1 :]
        return beyond_workspace(behind) if behind else ""
    if name == "npx" and _runs_project_tool([field.text for field in fields[1:]]):
        return ""
    if name in _RUNNERS:
        return f"{name} fetches what it runs"
    if subcommand in _SUBCOMMANDS.get(name, ()) or (name == "yarn" and len(fields) == 1):
        return f"{name} {subcommand}".rstrip() + " reaches other machines"
    return ""


def _runs_project_tool(words: Sequence[str]) -> bool:
    """True for the arguments of npx where it runs a tool of the project, or may fetch nothing."""
    tool = next((word for word in words if word not in _NPX_OPTIONS), "")
    options = words[: words.index(tool)] if tool else []
    return tool in _PROJECT_TOOLS or ("--no-install" in options and not tool.startswith("-"))


def registries_of(fields: Sequence[Field]) -> tuple[str, ...]:
    """The hosts that an installer fetches from."""
    name, _ = _called(fields)
    return _REGISTRIES.get(name, ()) if beyond_workspace(fields) else ()


def _called(fields: Sequence[Field]) -> tuple[str, str]:
    """The program and its subcommand; `python -m pip` is `pip`, `go mod download` is `go download`."""
    words = [field.text for field in fields]
    name = words[0].rpartition("/")[2]
    if name.startswith("python") and words[1:2] == ["-m"] and len(words) > 2:
        name, words = words[2], words[2:]
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in _WITH_VALUE else 1 :]
    if name == "go" and rest[:1] == ["mod"]:
        rest = rest[1:]
    return name, rest[0] if rest else ""
