"""MCP servers of other tools as tables with the keys of .mcp.json, without the secrets in them."""

from __future__ import annotations

from pathlib import Path

from agentcli.cli.import_draft import Draft

TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


def test_secrets_give_way_to_their_variables() -> None:
    draft = Draft(Path("config.toml"), is_project=False)
    servers = {
        "github": {
            "type": "stdio",
            "command": "npx",
            "args": ["-y", "server"],
            "env": {"GITHUB_TOKEN": TOKEN, "LEVEL": "2", "OTHER": "${OTHER}"},
        },
        "docs": {
            "type": "http",
            "url": "https://docs.example.org",
            "headers": {"Authorization": "Bearer abc", "X": "1"},
        },
        "wiki": {"type": "http", "url": "https://wiki.example.org", "headers": {"Authorization": TOKEN}},
        "blank": {"type": "http", "url": "https://blank.example.org", "headers": {"Authorization": "Bearer "}},
        "odd": {"timeout": 3},
    }
    draft.import_servers("", servers)
    assert draft.values["mcp_servers"] == {
        "github": {**servers["github"], "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}", "LEVEL": "2", "OTHER": "${OTHER}"}},
        "docs": {**servers["docs"], "headers": {"Authorization": "${DOCS_AUTHORIZATION}", "X": "1"}},
        "wiki": {**servers["wiki"], "headers": {"Authorization": "${WIKI_AUTHORIZATION}"}},
        "blank": {**servers["blank"], "headers": {"Authorization": "${BLANK_AUTHORIZATION}"}},
    }
    assert len(draft.left_out) == 5
    assert TOKEN not in "".join(draft.left_out)


def test_the_claude_code_names_of_codex_stay() -> None:
    given = {
        "docs": {"url": "https://d.example.org", "http_headers": {"X": "1"}, "bearer_token_env_var": "DOCS_TOKEN"},
        "here": {"command": "server", "startup_timeout_sec": 3, "enabled": False, "scopes": ["x"]},
    }
    draft = Draft(Path("config.toml"), is_project=False)
    draft.source = Path("config.toml")
    draft.import_servers("", given)
    assert draft.values["mcp_servers"] == {
        "docs": given["docs"],
        "here": {"command": "server", "startup_timeout_sec": 3, "enabled": False},
    }
    assert draft.left_out == ["config.toml: here.scopes: agentcli has no such setting."]


def test_what_is_left_out_of_a_server_is_named_in_the_order_of_its_file() -> None:
    draft = Draft(Path("config.toml"), is_project=False)
    keys = [f"option{number}" for number in range(8)]
    draft.import_servers("", {"docs": {"command": "docs", **dict.fromkeys(keys, 1)}})
    assert [note.split(": ")[1] for note in draft.left_out] == [f"docs.{key}" for key in keys]
