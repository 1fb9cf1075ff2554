"""Loads the programs and subcommands of git that only read: `only_reading.ini` beside this module."""

from __future__ import annotations

from agentcli.safety.commands.programs.tables import read_table

_TABLES = read_table("only_reading")


def _whole(row: str) -> str:
    """A row with its parts put in."""
    for name in reversed(_TABLES["parts"]):
        row = row.replace(f"<{name}>", _TABLES["parts"][name])
    return row


# By program, and by subcommand: a row as options.py explains it.
PROGRAMS = {name: _whole(row) for name, row in _TABLES["programs"].items()}
GIT = {name: _whole(row) for name, row in _TABLES["git"].items()}
GIT_FORMS = {name: _whole(row) for name, row in _TABLES["git_forms"].items()}
# By subcommand: the options or words of which one has to be there.
GIT_NEEDS = {name: frozenset(words.split()) for name, words in _TABLES["git_needs"].items()}
# By program: the options that only print its version.
VERSIONS = {name: row.split() for row, names in _TABLES["versions"].items() for name in names.split()}
