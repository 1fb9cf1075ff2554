"""file_list: the files of a folder as the project's ignore rules have them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentcli.tools.builtin.file_list import NearestPaths
from tests.unit.tools.bench import Bench


def project(bench: Bench) -> None:
    for name in ("README.md", "src/app.py", "src/deep/er/x.py", "src/a.log", "build/out.js", ".github/ci.yml", ".env"):
        bench.put(name, "x")
    bench.put(".gitignore", "*.log\nbuild/\n")
    bench.put(".git/config", "x")


def test_files_and_folders_are_listed_nearest_first_and_folders_end_in_a_slash(bench: Bench) -> None:
    project(bench)
    output = bench.call("file_list")
    assert str(output.content).split("\n") == [
        ".env",
        ".github/",
        ".gitignore",
        "README.md",
        "src/",
        ".github/ci.yml",
        "src/app.py",
        "src/deep/",
        "src/deep/er/",
        "src/deep/er/x.py",
    ]
    assert output.structured == {"paths": str(output.content).split("\n"), "total": 10}


def test_the_repository_itself_is_never_listed(bench: Bench) -> None:
    project(bench)
    assert not [
        path for path in bench.call("file_list", include_ignored=True).structured["paths"] if path.startswith(".git/")
    ]


def test_include_ignored_lists_what_the_rules_leave_out(bench: Bench) -> None:
    project(bench)
    paths = bench.call("file_list", include_ignored=True).structured["paths"]
    assert {"src/a.log", "build/", "build/out.js"} <= set(paths)


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


def test_a_pattern_chooses_files_at_any_depth(bench: Bench) -> None:
    project(bench)
    assert bench.call("file_list", pattern="*.py").structured["paths"] == ["src/app.py", "src/deep/er/x.py"]
    assert bench.call("file_list", pattern="**/*.py").structured["total"] == 2
    assert bench.call("file_list", pattern="./src/*.py").structured["paths"] == ["src/app.py"]
    assert bench.call("file_list", pattern="*.{md,yml}").structured["paths"] == ["README.md", ".github/ci.yml"]


def test_a_pattern_does_not_bring_back_ignored_files(bench: Bench) -> None:
    project(bench)
    assert bench.text("file_list", pattern="*.py") == "src/app.py\nsrc/deep/er/x.py"
    assert bench.call("file_list", pattern="*.log").structured == {"paths": [], "total": 0}
    assert bench.call("file_list", pattern="*.log", include_ignored=True).structured["paths"] == ["src/a.log"]


def test_who_asks_for_ignored_files_by_name_is_told_of_them(bench: Bench) -> None:
    project(bench)
    assert bench.text("file_list", pattern="*.log") == (
        "No files.\n[ignored files match: 1; include_ignored lists them]"
    )
    assert bench.text("file_list", pattern="*.nonesuch") == "No files."


@pytest.mark.parametrize("pattern", ["src/deep/**/*.py", "deep/**/*.py", "{ws}/src/deep/*/*.py", "./src/**/x.py"])
def test_a_pattern_starts_at_the_path_or_at_the_working_directory(bench: Bench, pattern: str) -> None:
    project(bench)
    paths = bench.call("file_list", path="src", pattern=pattern.replace("{ws}", str(bench.ws))).structured["paths"]
    assert paths == ["src/deep/er/x.py"]


def test_a_pattern_for_everything_is_everything_that_is_not_ignored(bench: Bench) -> None:
    project(bench)
    files = [path for path in bench.call("file_list").structured["paths"] if not path.endswith("/")]
    for pattern in ("**/*", "*", "**"):
        assert bench.call("file_list", pattern=pattern).structured["paths"] == files


def test_a_pattern_that_is_no_glob_is_an_error_in_ripgrep_s_words(bench: Bench) -> None:
    bench.put("a")
    error = bench.fails("file_list", pattern="[")
    assert error.kind == "invalid_parameters"
    assert "glob" in str(error)


def test_depth_one_is_the_folder_itself_with_folders_of_any_contents(bench: Bench) -> None:
    project(bench)
    bench.put("main/java/org/App.java")
    paths = bench.call("file_list", depth=1).structured["paths"]
    assert paths == [".env", ".github/", ".gitignore", "README.md", "main/", "src/"]


def test_depth_two_goes_one_folder_deeper(bench: Bench) -> None:
    project(bench)
    paths = bench.call("file_list", depth=2).structured["paths"]
    assert "src/deep/" in paths
    assert "src/deep/er/" not in paths


def test_depth_counts_from_the_folder_asked_for(bench: Bench) -> None:
    project(bench)
    assert bench.call("file_list", path="src", depth=1).structured["paths"] == ["src/app.py", "src/deep/"]


def test_above_the_limit_it_says_how_many_more(bench: Bench) -> None:
    for n in range(105):
        bench.put(f"f{n:03}")
    output = bench.call("file_list")
    assert str(output.content).split("\n")[-2:] == ["f099", "[5 more]"]
    assert len(output.structured["paths"]) == 100
    assert output.structured["total"] == 105
    assert bench.text("file_list", limit=3) == "f000\nf001\nf002\n[102 more]"


def test_a_pattern_may_hold_a_colon(bench: Bench) -> None:
    for name in (".gitignore", "a:b", "src/a:c", "src/ab", "built/a:d"):
        bench.put(name, "built/\n")
    assert bench.text("file_list", pattern="a:*") == "a:b\nsrc/a:c"
    assert bench.text("file_list", pattern="src/a:*") == "src/a:c"


def test_limit_zero_lists_all(bench: Bench) -> None:
    for n in range(105):
        bench.put(f"f{n:03}")
    assert len(bench.call("file_list", limit=0).structured["paths"]) == 105


def test_brief_shows_ten(bench: Bench) -> None:
    for n in range(12):
        bench.put(f"f{n:02}")
    assert bench.text("file_list", output_level="brief").endswith("f09\n[2 more]")


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


def test_what_could_not_be_read_is_said(unprivileged_bench: Bench) -> None:
    bench = unprivileged_bench
    bench.put("a.py")
    bench.put("locked/b.py").parent.chmod(0)
    try:
        assert bench.text("file_list") == "a.py\n[1 file or folder could not be read]"
    finally:
        (bench.ws / "locked").chmod(0o700)


def test_a_file_in_place_of_a_folder_is_an_error_that_names_file_read(bench: Bench) -> None:
    bench.put("a.py")
    error = bench.fails("file_list", path="a.py")
    assert "file_read" in str(error)


def test_a_missing_folder_is_an_error(bench: Bench) -> None:
    assert bench.fails("file_list", path="gone").kind == "not_found"


def test_an_empty_folder_has_no_files(bench: Bench) -> None:
    output = bench.call("file_list")
    assert output.content == "No files."
    assert output.structured == {"paths": [], "total": 0}


def test_paths_outside_are_refused(bench: Bench) -> None:
    assert bench.fails("file_list", path="..").kind == "permission_denied"
    assert bench.fails("file_list", path="/").kind == "permission_denied"


def test_absolute_paths_are_shown_relative(bench: Bench) -> None:
    path = bench.put("src/a.py")
    assert bench.text("file_list", path=str(path.parent)) == "src/a.py"


@pytest.mark.parametrize("name", ["with space.py", "new\nline.py", "文件.py", "-dash", "'quote\"", "!bang"])
def test_odd_names_come_through(bench: Bench, name: str) -> None:
    bench.put(name)
    assert bench.call("file_list").structured["paths"] == [name]


def test_a_name_that_is_no_utf_8_can_be_shown_and_sent(bench: Bench) -> None:
    Path(os.fsdecode(os.fsencode(bench.ws) + b"/caf\xe9.py")).write_text("x")
    output = bench.call("file_list")
    assert output.content == r"$'caf\xe9.py'"
    json.dumps([output.content, output.structured], ensure_ascii=False).encode()


def test_a_pattern_with_a_nul_is_an_error_not_a_crash(bench: Bench) -> None:
    assert bench.fails("file_list", pattern="a\0b").kind == "invalid_parameters"


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
