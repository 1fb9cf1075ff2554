"""file_list: the files of a folder as the project's ignore rules have them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentcli.tools.builtin.searching import NearestPaths
from tests.unit.tools.bench import Bench


def project(bench: Bench) -> None:
    for name in ("README.md", "src/app.py", "src/deep/er/x.py", "src/a.log", "build/out.js", ".github/ci.yml", ".env"):
        bench.put(name, "x")
    bench.put(".gitignore", "*.log\nbuild/\n")
    bench.put(".git/config", "x")


TOP = [".env", ".github/", ".gitignore", "README.md", "src/"]
ALL = [*TOP, ".github/ci.yml", "src/app.py", "src/deep/", "src/deep/er/", "src/deep/er/x.py"]
FILES = [path for path in ALL if not path.endswith("/")]
DEEP = ["src/deep/er/x.py"]


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({}, ALL),  # nearest first, folders with a slash
        ({"include_ignored": True}, [*TOP[:4], "build/", "src/", *ALL[5:6], "build/out.js", "src/a.log", *ALL[6:]]),
        ({"pattern": "*.py"}, ["src/app.py", *DEEP]),
        ({"pattern": "**/*.py"}, ["src/app.py", *DEEP]),
        ({"pattern": "./src/*.py"}, ["src/app.py"]),
        ({"pattern": "*.{md,yml}"}, ["README.md", ".github/ci.yml"]),
        ({"pattern": "*.log"}, []),  # a pattern does not bring back what is ignored
        ({"pattern": "*.log", "include_ignored": True}, ["src/a.log"]),
        *(({"pattern": pattern}, FILES) for pattern in ("**/*", "*", "**")),
        *(
            ({"path": "src", "pattern": pattern}, DEEP)  # from the path or from the working directory
            for pattern in ("src/deep/**/*.py", "deep/**/*.py", "{ws}/src/deep/*/*.py", "./src/**/x.py")
        ),
        ({"depth": 1}, TOP),
        ({"depth": 2}, ALL[:8]),
        ({"path": "src", "depth": 1}, ["src/app.py", "src/deep/"]),
    ],
)
def test_what_is_listed_of_a_project(bench: Bench, given: dict[str, Any], paths: list[str]) -> None:
    project(bench)
    given = {**given, "pattern": given["pattern"].replace("{ws}", str(bench.ws))} if "pattern" in given else given
    output = bench.call("file_list", **given)
    assert output.structured == {"paths": paths, "total": len(paths)}
    ignored = (
        ["[ignored files that match: 1. To list them, set include_ignored.]"] if given == {"pattern": "*.log"} else []
    )
    assert output.content == "\n".join([*(paths or ["No files."]), *ignored])


@pytest.mark.parametrize(
    ("given", "shown", "more"),
    [({}, 100, 5), ({"limit": 3}, 3, 102), ({"limit": 0}, 105, 0), ({"output_level": "brief"}, 10, 95)],
)
def test_above_the_limit_it_says_how_many_more(bench: Bench, given: dict[str, Any], shown: int, more: int) -> None:
    names = [bench.put(f"f{n:03}").name for n in range(105)]
    output = bench.call("file_list", **given)
    assert output.structured == {"paths": names[:shown], "total": 105}
    assert output.content == "\n".join([*names[:shown], *([f"[{more} more]"] if more else [])])


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"pattern": "["}, "invalid_parameters", "glob"),
        ({"pattern": "a\0b"}, "invalid_parameters", "null byte"),
        ({"path": "a.py"}, "invalid_parameters", "file_read"),
        ({"path": "gone"}, "not_found", "does not exist"),
        ({"path": ".."}, "permission_denied", "outside the workspace"),
        ({"path": "/"}, "permission_denied", "outside the workspace"),
    ],
)
def test_what_cannot_be_listed_is_an_error(bench: Bench, given: dict[str, str], kind: str, said: str) -> None:
    bench.put("a.py")
    error = bench.fails("file_list", **given)
    assert (error.kind, said in str(error)) == (kind, True)


def test_ignore_rules_of_folders_above_hold_below(bench: Bench) -> None:
    bench.put(".git/config")
    bench.put(".gitignore", "*.tmp\n/pkg/gen/\n")
    bench.put("pkg/.gitignore", "!keep.tmp\n")
    for name in ("pkg/a.py", "pkg/a.tmp", "pkg/keep.tmp", "pkg/gen/b.py"):
        bench.put(name)
    assert bench.call("file_list", path="pkg").structured["paths"] == ["pkg/.gitignore", "pkg/a.py", "pkg/keep.tmp"]


def test_ignore_rules_hold_without_a_repository_too(bench: Bench) -> None:
    bench.put(".gitignore", "*.log\n")
    bench.put("a.log")
    bench.put("sub/b.log")
    bench.put("sub/b.py")
    assert bench.call("file_list").structured["paths"] == [".gitignore", "sub/", "sub/b.py"]


def test_a_pattern_may_hold_a_colon(bench: Bench) -> None:
    for name in (".gitignore", "a:b", "src/a:c", "src/ab", "built/a:d"):
        bench.put(name, "built/\n")
    assert bench.text("file_list", pattern="a:*") == "a:b\nsrc/a:c"
    assert bench.text("file_list", pattern="src/a:*") == "src/a:c"


def test_of_very_many_files_the_nearest_are_shown_and_all_are_counted() -> None:
    found = NearestPaths(5, below="", with_folders=True, depth=None)
    for part in range(60):
        found.add("".join(f"part{part:02}/deep/file{n}\0" for n in range(5_000)))
    found.add("part07/near\0top\0z/far/away/x\0")
    assert found.result("") == (["part00/", "part01/", "part02/", "part03/", "part04/"], 60 * 5_000 + 3 + 60 * 2 + 3)
    found = NearestPaths(5, below="", with_folders=False, depth=None)
    for part in range(60):
        found.add("".join(f"part{part:02}/deep/file{n:04}\0" for n in reversed(range(5_000))))
    found.add("part07/near\0top\0")
    first = ["top", "part07/near", *(f"part00/deep/file{n:04}" for n in range(3))]
    assert found.result("") == (first, 60 * 5_000 + 2)


def test_symlinks_and_empty_folders_are_left_out_as_ripgrep_does(bench: Bench) -> None:
    bench.put("src/a.py")
    (bench.ws / "empty").mkdir()
    (bench.ws / "link").symlink_to("src")
    (bench.ws / "src/loop").symlink_to("..")
    (bench.ws / "file_link").symlink_to("src/a.py")
    assert bench.call("file_list").structured["paths"] == ["src/", "src/a.py"]


def test_unreadable_parts_are_reported(unprivileged_bench: Bench) -> None:
    bench = unprivileged_bench
    bench.put("a.py")
    bench.put("locked/b.py").parent.chmod(0)
    try:
        assert bench.text("file_list") == "a.py\n[1 file or folder could not be read]"
    finally:
        (bench.ws / "locked").chmod(0o700)


def test_an_empty_folder_has_no_files(bench: Bench) -> None:
    output = bench.call("file_list")
    assert output.content == "No files."
    assert output.structured == {"paths": [], "total": 0}


def test_absolute_paths_are_shown_relative(bench: Bench) -> None:
    path = bench.put("src/a.py")
    assert bench.text("file_list", path=str(path.parent)) == "src/a.py"


@pytest.mark.parametrize("name", ["with space.py", "new\nline.py", "文件.py", "-dash", "'quote\"", "!bang"])
def test_odd_names_come_through(bench: Bench, name: str) -> None:
    bench.put(name)
    assert bench.call("file_list").structured["paths"] == [name]


def test_a_name_that_is_not_utf_8_can_be_shown_and_sent(bench: Bench) -> None:
    Path(os.fsdecode(os.fsencode(bench.ws) + b"/caf\xe9.py")).write_text("x")
    output = bench.call("file_list")
    assert output.content == r"$'caf\xe9.py'"
    json.dumps([output.content, output.structured], ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("app/[slug]/**/*.tsx", ["app/[slug]/(auth)/page.tsx"]),
        ("app/[slug]/(auth)/page.tsx", ["app/[slug]/(auth)/page.tsx"]),
        ("/app/[slug]/**", ["app/[slug]/(auth)/page.tsx"]),
        ("**/[slug]/**/*.tsx", ["app/[slug]/(auth)/page.tsx"]),
        ("**/[user-id]/*.tsx", ["app/[user-id]/page1.tsx", "app/[user-id]/page2.tsx"]),  # no range of characters
        ("app/[user-id]/page[1].tsx", ["app/[user-id]/page1.tsx"]),
        ("[[...all]].tsx", ["app/[[...all]].tsx"]),
        ("app/[st]/*.tsx", ["app/s/page.tsx", "app/t/page.tsx"]),
        ("app/[!s]/*.tsx", ["app/t/page.tsx"]),
        ("app/[xyz]/*.tsx", []),
    ],
)
def test_brackets_are_literal_where_a_name_has_them(bench: Bench, glob: str, found: list[str]) -> None:
    for name in ("[slug]/(auth)/page", "[user-id]/page1", "[user-id]/page2", "[[...all]]", "s/page", "t/page"):
        bench.put(f"app/{name}.tsx", "alpha\n")
    assert bench.call("file_list", pattern=glob).structured["paths"] == found
    matches = bench.call("grep_search", pattern="alpha", glob=glob).structured["matches"]
    assert [match["path"] for match in matches] == found


def test_a_folder_that_is_called_so_goes_before_others_of_its_letters(bench: Bench) -> None:
    for name in ("[slug]", "s", "l"):
        bench.put(f"app/{name}/page.tsx")
    assert bench.text("file_list", pattern="app/[slug]/*") == "app/[slug]/page.tsx"
    assert bench.text("file_list", path="app", pattern="[slug]/*") == "app/[slug]/page.tsx"
