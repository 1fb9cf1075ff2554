"""Lines of instruction files that can be permission rules, and those that cannot."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentcli.agent.permissions.instruction_rules import find_rules
from agentcli.agent.permissions.rule_checks import check_rule
from agentcli.agent.permissions.rules import parse_rule
from agentcli.tools.builtin.toolset import builtin_tools

PIP = ["deny", "bash(pip *)", "bash(pip3 *)", "bash(python* -m pip *)"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "api/schema").mkdir(parents=True)
    return tmp_path


def found(root: Path, text: str, file: str = "AGENTS.md") -> list[list[str]]:
    return [[one.verb, *one.rules] for one in find_rules({str(root / file): text}, root)]


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("- use uv, not pip", PIP),
        ("We use `uv` instead of pip for packages.", PIP),
        ("Instead of pip, always use uv.", PIP),
        ("* Package manager: **uv** (never pip)", PIP),
        ("Don’t use pip; use uv.", PIP),
        ("Use pnpm rather than npm or yarn", ["deny", "bash(npm *)", "bash(yarn *)"]),
        ("Use `uv run pytest`, not `pytest`.", ["deny", "bash(pytest *)"]),
        ("Use pytest, not unittest.", ["deny", "bash(python* -m unittest *)"]),
        ("never run git push", ["deny", "bash(git push *)"]),
        ("⚠️ **NEVER** run `./up.sh --prod`", ["deny", "bash(./up.sh --prod *)", "bash(./up.sh * --prod *)"]),
        ("Never run `git push --force`.", ["deny", "bash(git push --force *)", "bash(git push * --force *)"]),
        ("1. Never use `--no-verify`.", ["deny", "bash(* --no-verify*)"]),
        ("Never commit or push.", ["deny", "bash(git commit *)", "bash(git push *)"]),
        ("Never commit without asking me first.", ["ask", "bash(git commit *)"]),
        ("Do not push unless I tell you to.", ["ask", "bash(git push *)"]),
        ("Ask before running `make deploy`.", ["ask", "bash(make deploy *)"]),
        ("`git push` is forbidden.", ["deny", "bash(git push *)"]),
        ("never edit vendor/", ["deny", "file_edit(/**/vendor)"]),
        ("don't touch migrations", ["deny", "file_edit(/migrations)"]),
        ("You must not modify `api/schema/` or *.pb.go.", ["deny", "file_edit(/api/schema)", "file_edit(/**/*.pb.go)"]),
        ("Do not edit package-lock.json by hand.", ["deny", "file_edit(/**/package-lock.json)"]),
        ("Files in `gen/` are generated. Do not edit them.", ["deny", "file_edit(/**/gen)"]),
        ("`gen/` is generated: never change it", ["deny", "file_edit(/**/gen)"]),
        ("Leave migrations/ alone.", ["deny", "file_edit(/migrations)"]),
        ("Files under dist/ must not be edited.", ["deny", "file_edit(/**/dist)"]),
        ("migrations/ is read-only", ["deny", "file_edit(/migrations)"]),
        ("Never read secrets/ or .env.", ["deny", "file_read(/**/secrets)", "file_read(/**/.env)"]),
        ("Never write to /etc/", ["deny", "file_edit(//etc)"]),
        ("Never edit files\n  in vendor/, they\n  are overwritten when you update.", ["deny", "file_edit(/**/vendor)"]),
        ("> Do not edit or delete anything under migrations/**", ["deny", "file_edit(/migrations)"]),
    ],
)  # fmt: skip
def test_a_clear_line_is_a_rule(root: Path, line: str, rules: list[str]) -> None:
    assert found(root, f"# Rules\n\n{line}\n") == [rules]
    for rule in rules[1:]:
        assert check_rule(parse_rule(rule), "deny", builtin_tools()) == ""


@pytest.mark.parametrize(
    "line",
    [
        "Use tabs, not spaces.",
        "Use const, not `var`; use `Path`, not `os.path`.",
        "Never use `any`.",
        "Never use yarn instead of npm.",
        "Never commit secrets.",
        "Never commit .env files.",
        "Never push to main.",
        "For releases, never run npm publish.",
        "If pip is missing, do not run npm.",
        "Never edit vendor/ unless a patch needs it.",
        "Never edit migrations/ that have been applied.",
        "Never delete migrations/.",
        "Tests must not touch migrations/.",
        "CI never runs npm.",
        "Do not change the public API.",
        "Never run npm install in packages/a.",
        "Do not edit ../other/.",
        "Prefer uv over pip.",
        "```\nnever edit vendor/\n```",
        "<!-- never edit vendor/ -->",
        "never edit https://example.org/x",
        "never run `a; b` or `x | sh`",
    ],
)
def test_a_line_with_a_condition_or_of_another_kind_is_none(root: Path, line: str) -> None:
    assert found(root, line) == []


def test_paths_begin_at_the_folder_of_the_file_that_names_them(root: Path) -> None:
    text = "Never edit schema/.\n\nNever edit gen/out/.\n\nNever edit migrations/."
    assert found(root, text, "api/AGENTS.md") == [
        ["deny", "file_edit(/api/schema)"],
        ["deny", "file_edit(/api/gen/out)"],
        ["deny", "file_edit(/migrations)"],
    ]


def test_the_line_is_quoted_with_its_file_and_cut_when_long(root: Path) -> None:
    (one,) = find_rules({str(root / "api/AGENTS.md"): "- Never run npm. " + "It is slow. " * 50}, root)
    assert one.quote == 'api/AGENTS.md says: "Never run npm."'
    (one,) = find_rules({"/home/AGENTS.md": "never run npm: " + "x" * 500}, root)
    assert one.quote.startswith('/home/AGENTS.md says: "never run npm: xxx')
    assert len(one.quote) < 200


@pytest.mark.parametrize(
    "unit",
    ["never ", "use x ", "-" * 40, "`", "never edit a/ ", "use npm, not ", "a/,", "do  not ", "*", "_a", "(", "{a,b}"],
)  # fmt: skip
def test_a_hostile_file_takes_no_long_time(root: Path, unit: str) -> None:
    started = time.monotonic()
    find_rules({str(root / "AGENTS.md"): unit * (32_000 // len(unit))}, root)
    assert time.monotonic() - started < 5
