"""The `@names` of a prompt that are said to be no file, and those that may be something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli.conversation.mentions import missing_files


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    for name in ("name.py", "Makefile", "src/parser.py", "src/my file.py", "types/common.ts", ".env", "dataclasses.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "notes.md").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    return root


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("look at @nmae.py please", "nmae.py"),
        ("see @parser.py.", "parser.py"),
        ("(@src/praser.py)", "src/praser.py"),
        ("@src/parts/of", "src/parts/of"),
        ("@src/parser.py#L12 why", "src/parser.py#L12"),
        ('@"src/my fil.py" why', "src/my fil.py"),
        ("@quite/another.json", "quite/another.json"),
        ("@~/nots.md", "~/nots.md"),
        ("@../nothing-like-it", "../nothing-like-it"),
        ("line one\n@zzz.toml", "zzz.toml"),
    ],
)
def test_a_name_that_was_meant_as_a_file_is_reported(typed: str, name: str, root: Path) -> None:
    assert missing_files(typed, root) == [name]


@pytest.mark.parametrize(
    "typed",
    [
        "@name.py @src @src/ @src/parser.py, @Makefile. @.env @~/notes.md @../notes.md @/etc/hostname (@name.py)",
        '@"src/my file.py" @"src/my file.py":12 @"src/my file.py:12-20"',
        "see @src/parser.py:12-20",
        "mail me@example.com or me@name.pz",
        "use @dataclass and @property, @staticmethod",
        "@dataclass\nclass A: ...",
        "@app.route('/x') @pytest.mark.parametrize @functools.cache @x.setter @app.get(\"/a.py\")",
        "install @types/node @types/node@18.1 @angular/core @babel/preset-env and @org/pkg/sub",
        "ask @peter and @everyone @name",
        "on @example.com and @mastodon.social",
        "the @media rule, @{upstream}, HEAD@{1}, @param x, @Override, @import",
        "the alias @/components/Button and @/lib/utils.ts",
        "run `git log @nmae.py` and ```\n@nmae.py\n```",
        "an @ alone, @@ two, @. @... @-",
        "x" * 10 + " @" + "y" * 5000,
        'from "@/nmae.py" and "@nmae.py"',
    ],
)
def test_what_may_mean_something_else_is_left_alone(typed: str, root: Path) -> None:
    assert missing_files(typed, root) == []


def test_each_name_is_reported_once(root: Path) -> None:
    assert missing_files("@a.md @b.md @a.md", root) == ["a.md", "b.md"]
