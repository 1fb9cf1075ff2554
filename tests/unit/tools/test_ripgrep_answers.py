"""file_list and grep_search give the very answers of ripgrep, on trees and for questions made up at random."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentcli.tools.sandbox import find_rg
from agentcli.tools.workspace import display_name
from tests.unit.tools.bench import ENVIRONMENT, Bench

ALWAYS = ("--no-config", "--no-require-git", "--hidden")

FOLDERS = ("src", "build", "deep", ".github", "with space", "new\nline", "src-2", "ünï", "[a]", "empty\n\nline")
NAMES = (
    "a.py", "b.txt", "c.log", "keep.log", ".hidden.py", ".env.sample", "README.md", "x y.py", "é.py", "q?.txt", "-n",
    "1:x", "{a,b}.py", "'\"", "line\nend.txt", "two\n\nends.log", "no_ext", "big.JSON", "ca\udce9.txt", "!bang",
)  # fmt: skip
IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")
RULES = (
    "*.log", "build/", "!keep.log", "/src", "*.txt", "!*.txt", "**/deep", "a.py", "/*.py", "src/*", "!src/a.py",
    "# no rule", "deep/**", "\\!bang", "[", "*", "!*/", ".hidden*", "with space/",
)  # fmt: skip
LINES = (
    b"needle", b"a needle here", b"Needle()", b"", b"  needle  ", b"begin", b"  middle", b"end", b"import os", b"x\ty",
    b"caf\xe9 needle", "döner needle".encode(), b"needle " + b"x" * 900, b"12:needle", b"--", b"3-4", b"./path",
    b"needle\r", b"\rneedle", b"foo(bar)", b"{", "\u2028needle".encode(),
)  # fmt: skip
PATTERNS = (
    "needle", "^needle", "needle$", "n..dle", "", "^$", "(?i)NEEDLE", "foo\\(", "\\bend\\b", "[a-f]+", "é", "ö",
    "\\d+", "import|begin", "x{3,}", "-n", "\\.", "needle +$", "\\S\\s\\S", "\\pL+", "caf.", "(?-u:\\xe9)",
    "foo(?=\\()", "(.)\\1",
)  # fmt: skip
SPANNING = ("begin.*end", "begin\\n", "needle\\s+\\w+", "(?s)a.*?x", "middle\\n.*\\n", "\\n\\n", "e$\\n^")
GLOBS = (
    "*.py", "**/*.py", "*", "**", "**/*", "*.{py,txt}", "src/*", "src/**", "src/**/*.py", "/a.py", "/*", "**/deep/**",
    "!*.py", "!src/**", "!build", "src", "deep/", "*.log", "?.py", "[ab].*", "[!a]*", "{src,build}/*.py", "src/?.py",
    "**/src/*", "*/*", "*/*/*.py", ".*", "**/.*", "with space/*", "src/{a,b}*", "\\!bang", "é*", "s*c/**/*.{py,log}",
    "new*/**", "**/n*/*", "a**", "src/a**", "**/**/a.py", "src//a.py", "{a.py,src/b.txt}", "src/[a-c]*",
)  # fmt: skip
TYPES = ("py", "md", "txt", "json", "all")


def make_tree(dice: random.Random, top: Path) -> None:
    """Folders in folders, ignore files at several levels, repositories, links that lead astray, odd bytes."""
    folders = [top]
    for _ in range(dice.randint(1, 9)):
        folder = dice.choice(folders) / dice.choice(FOLDERS)
        folder.mkdir(exist_ok=True)
        folders.append(folder)
    for _ in range(dice.randint(1, 25)):
        (dice.choice(folders) / dice.choice(NAMES)).write_bytes(make_content(dice))
    for _ in range(dice.randint(0, 4)):
        rules = "\n".join(dice.sample(RULES, dice.randint(1, 4)))
        (dice.choice(folders) / dice.choice(IGNORE_FILES)).write_text(rules)
    for _ in range(dice.randint(0, 2)):
        repository = dice.choice(folders) / ".git"
        (repository / "info").mkdir(parents=True, exist_ok=True)
        (repository / "config").write_bytes(b"needle\n")
        (repository / "info" / "exclude").write_text(dice.choice(RULES))
    for n in range(dice.randint(0, 3)):
        target = dice.choice([*folders, *folders[-1].iterdir(), top / "gone"])
        (dice.choice(folders) / f"link{n}").symlink_to(target)


def make_content(dice: random.Random) -> bytes:
    lines = dice.choices(LINES, k=dice.randint(0, 12))
    end = dice.choice((b"\n", b"\n", b"\n", b"\r\n"))
    content = end.join(lines) + dice.choice((end, end, b""))
    match dice.randrange(14):
        case 0:
            return b"\xff\xfe" + content.decode("latin-1").encode("utf-16-le")
        case 1:
            return b"\xef\xbb\xbf" + content
        case 2:
            return b"\0" + content
        case 3:
            return content + b"filler\n" * 20_000 + b"\0needle\n"  # beyond what ripgrep reads at first
        case 4:
            return content * 400
    return content


def rg(folder: Path, *arguments: str) -> bytes:
    argv = [find_rg(), *ALWAYS, *arguments]
    return subprocess.run(
        argv, cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, check=False
    ).stdout


def shown(name: bytes) -> str:
    return display_name(os.fsdecode(name.removeprefix(b"./")))


def in_order(name: bytes) -> list[bytes]:
    return name.removeprefix(b"./").split(b"/")


def names_of(output: bytes) -> list[bytes]:
    return output.split(b"\0")[:-1]


def raw(data: dict[str, str]) -> bytes:
    return data["text"].encode() if "text" in data else base64.b64decode(data["bytes"])


def question(dice: random.Random, top: Path) -> dict[str, Any]:
    """Arguments of a search, and of the `rg` that has to give the same."""
    multiline = dice.random() < 0.2
    folders = [".", *(str(path.relative_to(top)) for path in top.iterdir() if path.is_dir() and not path.is_symlink())]
    given: dict[str, Any] = {"pattern": dice.choice(SPANNING if multiline else PATTERNS), "multiline": multiline}
    given["path"] = dice.choice([".", ".", *[folder for folder in folders if folder != ".git"]])
    if dice.random() < 0.5:
        given["glob"] = dice.choice(GLOBS)
    if dice.random() < 0.2:
        given["type"] = dice.choice(TYPES)
    return given | {"ignore_case": dice.random() < 0.2, "limit": dice.choice((0, 0, 1, 5))}


def options_of(given: dict[str, Any]) -> list[str]:
    options = ["-e", given["pattern"]]
    options += ["--pcre2"] if given["pattern"] in ("foo(?=\\()", "(.)\\1") else []
    options += ["--multiline", "--multiline-dotall"] if given["multiline"] else []
    options += ["--ignore-case"] if given["ignore_case"] else []
    options += ["-t", given["type"]] if "type" in given else []
    return [*options, *glob_options(given.get("glob"), given["path"]), "-g!.git", "--", given["path"]]


def glob_options(glob: str | None, path: str) -> list[str]:
    """A glob is relative to the working directory or to the path."""
    if glob is None:
        return []
    sign, glob = ("!", glob[1:]) if glob.startswith("!") else ("", glob)
    options = [f"-g{sign}{glob}"]
    if path != "." and "/" in glob.removeprefix("**/").rstrip("/"):
        escaped = "".join(f"\\{sign}" if sign in "*?[]{}\\,!# " else sign for sign in path)
        options.append(f"-g{sign}{escaped}/{glob.removeprefix('/')}")
    return options


def check_search(bench: Bench, given: dict[str, Any]) -> None:
    matches: list[tuple[list[bytes], str, int, str]] = []
    for line in rg(bench.ws, "--json", *options_of(given)).split(b"\n"):
        if line.startswith(b'{"type":"match"'):
            data = json.loads(line)["data"]
            path = raw(data["path"])
            for number, row in enumerate(raw(data["lines"]).removesuffix(b"\n").split(b"\n"), data["line_number"]):
                text = row.removesuffix(b"\r").decode(errors="replace")
                matches.append((in_order(path), shown(path), number, text))
    matches.sort(key=lambda match: (match[0], match[2]))
    expected = [{"path": path, "line": line, "text": text} for _, path, line, text in matches]
    structured = bench.call("grep_search", **given).structured
    assert structured["total"] == len(expected), given
    assert structured["matches"] == expected[: given["limit"] or None], given


def check_files(bench: Bench, given: dict[str, Any]) -> None:
    found = sorted(
        names_of(rg(bench.ws, "-l", "--null", *options_of(given))),
        key=in_order,
    )
    expected = [{"path": shown(name)} for name in found]
    structured = bench.call("grep_search", output_mode="files", **given).structured
    assert structured == {"matches": expected[: given["limit"] or None], "total": len(expected)}, given


def check_counts(bench: Bench, given: dict[str, Any]) -> None:
    output = rg(bench.ws, "-c", "--null", "-H", *options_of(given)).replace(b"\r\n", b"\n")
    structured = bench.call("grep_search", output_mode="count", **given | {"limit": 0}).structured
    expected = [(shown(name), int(count)) for name, count in re.findall(rb"([^\0]+)\0(\d+)\n", output)]
    assert sorted((match["path"], match["count"]) for match in structured["matches"]) == sorted(expected), given
    assert structured["total"] == sum(match["count"] for match in structured["matches"])


def check_listing(bench: Bench, dice: random.Random) -> None:
    folders = [
        path.name for path in bench.ws.iterdir() if path.is_dir() and not path.is_symlink() and path.name != ".git"
    ]
    path, glob, include_ignored = dice.choice([".", *folders]), dice.choice((None, *GLOBS)), dice.random() < 0.3
    given: dict[str, Any] = {"path": path, "include_ignored": include_ignored, "limit": 0}
    options = ["--files", "--null", *(["--no-ignore"] if include_ignored else [])]
    where = ["-g!.git", "--", path] if path != "." else ["-g!.git"]
    found = set(names_of(rg(bench.ws, *options, *where)))
    if glob is not None:
        given["pattern"] = glob
        found &= set(names_of(rg(bench.ws, *options, *glob_options(glob, path), *where)))
    paths = bench.call("file_list", **given).structured["paths"]
    files = [name for name in paths if glob is not None or not name.endswith("/")]
    assert sorted(files) == sorted(map(shown, found)), given
    if glob is None:
        above = {b"/".join(name.split(b"/")[:n]) + b"/" for name in found for n in range(1, name.count(b"/") + 1)}
        expected = {folder for folder in above if folder != os.fsencode(f"{path}/")}
        assert {name for name in paths if name.endswith("/")} == set(map(shown, expected)), given
    assert [name.rstrip("/").count("/") for name in paths] == sorted(name.rstrip("/").count("/") for name in paths)


def compare(tmp_path: Path, seeds: range, questions: int) -> None:
    for seed in seeds:
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        bench = Bench(folder)
        make_tree(dice, bench.ws)
        for _ in range(questions):
            given = question(dice, bench.ws)
            dice.choice((check_search, check_search, check_files, check_counts))(bench, given)
            check_listing(bench, dice)


@pytest.mark.slow
def test_listings_and_searches_are_those_of_ripgrep(tmp_path: Path) -> None:
    compare(tmp_path, range(8), 4)


@pytest.mark.full
def test_hundreds_of_listings_and_searches_are_those_of_ripgrep(tmp_path: Path) -> None:
    compare(tmp_path, range(2_000, 2_025), 10)
