"""Rules that a project keeps for other tools: which are read, when, and that none is read twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli.conversation.instructions import BUDGET, Instructions, nested_instructions
from agentcli.conversation.rule_files import RuleFileFinder, split_frontmatter
from tests.unit.conversation.test_instructions import found_in, names, put


def names_for(below: Path, *files: str) -> list[str]:
    """The rules that the model is given with these files."""
    found = nested_instructions(
        [], [below / file for file in files], below, finder=RuleFileFinder(root=below), known=()
    )
    return names(found, below)


ALWAYS: dict[str, str] = {
    "CONVENTIONS.md": "aider",
    ".claude/CLAUDE.md": "claude",
    ".claude/rules/deep/style.md": "claude",
    ".cursorrules": "cursor",
    ".github/copilot-instructions.md": "copilot",
    ".windsurfrules": "windsurf",
    ".windsurf/rules/a.md": "windsurf",
    ".devin/rules/a.md": "windsurf",
    ".clinerules": "cline",
    ".clinerules/01-first.md": "cline",
    ".clinerules/02-second.txt": "cline",
    "GEMINI.md": "gemini",
    "CLAUDE.md": "claude",
    "AGENTS.md": "agents",
}


@pytest.mark.parametrize("name", ALWAYS)
def test_a_file_of_each_tool_is_read_unless_its_kind_is_off(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, "Use tabs.")
    assert names(found_in(tmp_path, tmp_path, []), tmp_path) == [name]
    assert names(found_in(tmp_path, tmp_path, [], off=[ALWAYS[name]]), tmp_path) == []


@pytest.mark.parametrize("name", [".claude/rules/a.txt", ".cursor/rules/a.md", ".github/instructions/a.md"])
def test_files_that_their_tool_does_not_read_are_not_read(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, "---\nalwaysApply: true\n---\nx")
    assert found_in(tmp_path, tmp_path, []) == Instructions()


def test_rules_come_after_the_instruction_file_and_before_the_persons_own(tmp_path: Path) -> None:
    for name in ("AGENTS.local.md", ".cursorrules", "AGENTS.md", "sub/.cursorrules"):
        put(tmp_path / name, f"from {name}")
    read = ["AGENTS.md", ".cursorrules", "AGENTS.local.md", "sub/.cursorrules"]
    assert names(found_in(tmp_path / "sub", tmp_path, []), tmp_path) == read


WHEN = [  # the file, its frontmatter, and when it applies
    (".cursor/rules/a.mdc", "alwaysApply: true\nglobs: *.ts", "always"),
    (".cursor/rules/a.mdc", "description: Tests\nglobs:\nalwaysApply: false", "request"),
    (".cursor/rules/a.mdc", "description:\nglobs:\nalwaysApply: false", "named"),
    (".cursor/rules/a.mdc", "description: T\nglobs: src/**/*.ts, *.{md,txt}", "src/**/*.ts *.{md,txt}"),
    (".cursor/rules/a.mdc", 'globs: ["a.py", "b.py"]', "a.py b.py"),
    (".claude/rules/a.md", 'paths:\n  - "src/**"\n  - tests/**', "src/** tests/**"),
    (".claude/rules/a.md", "paths: {src,lib}/**/*.ts", "{src,lib}/**/*.ts"),
    (".claude/rules/a.md", "description: Style", "always"),
    (".github/instructions/a.instructions.md", 'applyTo: "**/*.ts,**/*.tsx"', "**/*.ts **/*.tsx"),
    (".github/instructions/a.instructions.md", "applyTo: '**'", "always"),
    (".github/instructions/a.instructions.md", "description: >-\n  About\n  tests", "request"),
    (".windsurf/rules/a.md", "trigger: glob\nglobs: *.css", "*.css"),
    (".windsurf/rules/a.md", "trigger: model_decision\ndescription: Releases", "request"),
    (".windsurf/rules/a.md", "trigger: manual", "named"),
    (".windsurf/rules/a.md", "trigger: always_on\nglobs: *.css", "always"),
    (".clinerules/a.md", "paths:\n- src/*.py", "src/*.py"),
    (
        ".clinerules/a.md",
        "paths:\n- src/[ab]\n- [ab]*.py\n- [ab]/[cd]\n- ['x[1]', y]",
        "src/[ab] [ab]*.py [ab]/[cd] x[1] y",
    ),
]


@pytest.mark.parametrize(("name", "frontmatter", "when"), WHEN)
def test_the_frontmatter_says_when_a_rule_applies(tmp_path: Path, name: str, frontmatter: str, when: str) -> None:
    put(tmp_path / name, f"---\n{frontmatter}\n---\nDo it so.\n")
    (rule,) = RuleFileFinder(root=tmp_path).rule_files_in(tmp_path)
    assert (" ".join(rule.globs) if rule.applies == "files" else rule.applies) == when
    found = found_in(tmp_path, tmp_path, [])
    assert names(found, tmp_path) == ([name] if when == "always" else [])
    note = found.to_reminder()
    assert (when in ("always", "request")) == (note is not None and str(tmp_path / name) in note.text)
    assert found.notices == ()


def test_a_rule_with_globs_is_given_with_the_first_file_that_it_fits(tmp_path: Path) -> None:
    put(tmp_path / ".cursor/rules/ts.mdc", "---\nglobs: *.{ts,tsx}\n---\nTypes.")
    put(tmp_path / ".claude/rules/api.md", "---\npaths:\n  - src/api/**\n---\nErrors.")
    put(tmp_path / "web/.cursor/rules/css.mdc", "---\nglobs: styles/*.css\n---\nColours.")
    assert names_for(tmp_path, "README.md", "styles/a.css") == []
    assert names_for(tmp_path, "src/deep/a.tsx") == [".cursor/rules/ts.mdc"]
    assert names_for(tmp_path, "src/api/a.ts") == [".claude/rules/api.md", ".cursor/rules/ts.mdc"]
    assert names_for(tmp_path, "web/styles/a.css") == ["web/.cursor/rules/css.mdc"]  # its globs begin at its folder
    finder, known = RuleFileFinder(root=tmp_path), [str(tmp_path / ".cursor/rules/ts.mdc")]
    again = nested_instructions([], [tmp_path / "src/api/a.ts"], tmp_path, finder=finder, known=known)
    assert names(again, tmp_path) == [".claude/rules/api.md"]


def test_a_link_or_a_copy_is_read_once(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "Use tabs.\n")
    put(tmp_path / ".cursor/rules/all.mdc", "---\nalwaysApply: true\n---\n\nUse tabs.\n")
    put(tmp_path / ".windsurfrules", "Use tabs.\r\n")
    put(tmp_path / ".cursorrules", "Use spaces.\n")
    (tmp_path / ".clinerules").symlink_to("AGENTS.md")
    (tmp_path / ".github").mkdir()
    (tmp_path / ".github/copilot-instructions.md").symlink_to("../AGENTS.md")
    found = found_in(tmp_path, tmp_path, [])
    assert names(found, tmp_path) == ["AGENTS.md", ".cursorrules"]
    assert found.notices == ()


BROKEN = [
    ("globs: [*.ts", "has only one bracket"),
    ("alwaysApply: perhaps", "alwaysApply is neither true nor false"),
    ("globs: *.ts\n= what", "line 3 is neither a key nor an item of a list"),
]


@pytest.mark.parametrize(("frontmatter", "problem"), BROKEN)
def test_a_broken_frontmatter_is_a_warning_and_the_rule_applies(tmp_path: Path, frontmatter: str, problem: str) -> None:
    file = put(tmp_path / ".cursor/rules/a.mdc", f"---\n{frontmatter}\n---\nDo it so.\n")
    found = found_in(tmp_path, tmp_path, [])
    assert [path for path, _ in found.files] == [file]
    (notice,) = found.notices
    assert str(file) in notice
    assert problem in notice


def test_a_frontmatter_without_an_end_is_broken() -> None:
    with pytest.raises(ValueError, match="the line that ends it is missing"):
        split_frontmatter("---\nglobs: *.ts\nDo it so.\n")
    assert split_frontmatter("Rules\n---\nglobs: *.ts\n---\n") == ({}, "Rules\n---\nglobs: *.ts\n---\n")


def test_a_rule_that_leads_out_of_the_project_is_left_out_and_its_description_not_shown(tmp_path: Path) -> None:
    put(tmp_path / "outside.md", "---\ndescription: SECRET\n---\nSECRET")
    (tmp_path / "repo/.cursor/rules").mkdir(parents=True)
    (tmp_path / "repo/.cursor/rules/a.mdc").symlink_to(tmp_path / "outside.md")
    found = found_in(tmp_path / "repo", tmp_path / "repo", [])
    assert found.to_reminder() is None
    assert found.notices == (f"{tmp_path}/repo/.cursor/rules/a.mdc was left out: it leads out of the project.",)


def test_rules_share_the_budget_of_instruction_files(tmp_path: Path) -> None:
    put(tmp_path / "AGENTS.md", "x\n" * BUDGET)
    put(tmp_path / ".cursorrules", "y\n" * BUDGET)
    found = found_in(tmp_path, tmp_path, [])
    assert sum(text.count("x\n") + text.count("y\n") for _, text in found.files) * 2 == BUDGET
    assert len(found.notices) == 2
