"""Which `@names` of a prompt are said to be no file, and which may be something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli.frontends.terminal.input.unknown_files import NameCheck, UnknownFile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("name.py", "Makefile", "src/parser.py", "src/my file.py", "types/common.ts", ".env", "dataclasses.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "notes.md").touch()
    return root


def paths_like(name: str) -> list[str]:
    return ["src/parser.py", "src/", "types/common.ts"]


def unknown(typed: str, root: Path) -> list[UnknownFile]:
    return NameCheck(root, root.parent, paths_like, send_key="Enter").unknown(typed)


@pytest.mark.parametrize(
    ("typed", "name", "near"),
    [
        ("look at @nmae.py please", "nmae.py", "name.py"),
        ("@nmae", "nmae", "name.py"),
        ("@Makefle", "Makefle", "Makefile"),
        ("see @parser.py.", "parser.py", "src/parser.py"),
        ("(@src/praser.py)", "src/praser.py", "src/parser.py"),
        ("@src/praser", "src/praser", "src/parser.py"),
        ("@scr/parser.py", "scr/parser.py", "src/parser.py"),
        ("@src/parser.py:12-20", "src/parser.py:12-20", "src/parser.py"),
        ("@src/parser.py#L12 why", "src/parser.py#L12", "src/parser.py"),
        ('@"src/my fil.py" why', "src/my fil.py", "src/my file.py"),
        ("@quite/another.json", "quite/another.json", ""),
        ("@~/nots.md", "~/nots.md", "~/notes.md"),
        ("@../nothing-like-it", "../nothing-like-it", ""),
        ("@/etc/hostnmae", "/etc/hostnmae", "/etc/hostname"),
        ("line one\n@zzz.toml", "zzz.toml", ""),
    ],
)
def test_a_name_that_was_meant_as_a_file_is_told(typed: str, name: str, near: str, root: Path) -> None:
    assert unknown(typed, root) == [UnknownFile(name, near)]


@pytest.mark.parametrize(
    "typed",
    [
        "@name.py @src @src/ @src/parser.py, @Makefile. @.env @~/notes.md @../notes.md @/etc/hostname (@name.py)",
        '@"src/my file.py"',
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
    assert unknown(typed, root) == []


def test_each_name_is_told_once(root: Path) -> None:
    assert [one.name for one in unknown("@a.md @b.md @a.md", root)] == ["a.md", "b.md"]


def test_an_installed_package_is_no_file(root: Path) -> None:
    assert unknown("@types/comon", root) == [UnknownFile("types/comon", "types/common.ts")]
    (root / "node_modules" / "@types" / "x").mkdir(parents=True)
    assert unknown("@types/comon", root) == []
