"""What makes the person's git run programs cannot be written by a command, however the repository is laid out."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentcli.infra.sandbox.confinement import Bounds, CommandResources, Confinement
from agentcli.infra.sandbox.git_config import SYSTEM_GIT
from agentcli.infra.sandbox.protection.auto_executed import find_new_or_changed, watched_states
from tests.conformance.confining import clean_environment, run

SHELL = """
repo() { mkdir -p "$1"; git -C "$1" init -q -b main; git -C "$1" commit -q --allow-empty -m first; }
subjects() { git -C "$1" log --format=%s | tr '\\n' ' '; }
set -e; mkdir -p ws
"""


@dataclass
class Layout:
    """A workspace `ws` that is made by a script, what a command in it attempts, and what must hold afterwards.

    `refused` is how many lines of errors it has at least. `said` is part of what the person is told of the limits.
    """

    make: str
    command: str
    out: str | None = None
    refused: int = 0
    holds: str = "true"
    said: str = ""
    bounds: Mapping[str, Any] = field(default_factory=dict)
    first: str = ""  # a command before


def shell(base: Path, script: str) -> None:
    done = subprocess.run(
        ["bash", "-c", SHELL + script],
        cwd=base,
        env=clean_environment(base),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)


def bounds_of(base: Path, more: Mapping[str, Any]) -> Bounds:
    absolute = {
        name: tuple(base / path for path in value)
        if name in ("roots", "writable", "masked", "readable_again")
        else value
        for name, value in more.items()
    }
    resources = {name: absolute.pop(name) for name in ("cache", "git") if name in absolute}
    if "cache" in resources:
        resources["cache"] = base / resources["cache"]
    absolute["resources"] = CommandResources(**resources)
    return Bounds(**{"profile": "workspace-write", "roots": (base / "ws",), "home": base} | absolute)


FORGED = (
    "mkdir -p p/{objects,refs} p/worktrees/feature; touch p/main.py; echo 'ref: refs/heads/main' >p/HEAD; : >p/config"
)
OWN_HOOKS = """
repo ws; mkdir ws/hk; echo original >ws/hk/pre-commit; printf '[include]\\n\\tpath = inner.conf\\n' >ws/outer.conf
printf '[core]\\n\\thooksPath = hk\\n' >ws/inner.conf
printf '[include]\\n\\tpath = ../inner.conf\\n' >ws/.git/inside.conf
"""
BARE = "repo source; git clone -q --bare source "

LAYOUTS = {
    **{
        f"a git folder that a command forged as {what} makes nothing around the workspace writable": Layout(
            FORGED, "echo evil >../../main.py; touch ../../new ../../objects/new", first=forge,
            holds="! test -s p/main.py; test -z $(find p -name new)", said="does not refer back",
            bounds={"roots": ("p/worktrees/feature",)},
        )
        for what, forge in {
            "itself": "echo 'gitdir: .' >.git; echo .git >gitdir; echo ../.. >commondir",
            "a folder in it": "mkdir -p a/worktrees/b; echo 'gitdir: a/worktrees/b' >.git; cd a/worktrees/b;"
            " echo ../../../.git >gitdir; echo ../../../../.. >commondir",
            "what it names as its worktree": "echo 'gitdir: ../..' >.git",
        }.items()
    },
    **{
        f"nor one in its {where}": Layout(
            FORGED, "touch ../p/new",
            first="f=../p/worktrees/feature; echo gitdir: $f >.git; echo $PWD/.git >$f/gitdir;"
            " echo ../.. >$f/commondir",
            holds="test -e p/worktrees/feature/commondir; ! test -e p/new",
            bounds={where: "p/worktrees/feature" if where == "cache" else ("p/worktrees/feature",)},
        )
        for where in ("cache", "writable")
    },
    **{
        f"a git file of the project's author that leads to {link} makes nothing writable": Layout(
            "repo home/repository; mkdir evil; echo ../home >evil/commondir; echo $PWD/ws/.git >evil/gitdir;"
            f" echo 'gitdir: {link}' >ws/.git",
            "touch ../home/x ../home/repository/x ../home/repository/.git/x ../evil/x",
            holds="test -z $(find . -name x)", said="does not refer back", bounds={"home": Path("/nowhere")},
        )
        for link in ("../home", "../home/repository", "../evil")
    },
    **{
        f"hooks stay as they are, named by {text!r}": Layout(
            f"{OWN_HOOKS} printf '{text}' >>ws/.git/config",
            f"for f in {files}; do echo evil >$f; rm -f $f; done; mv hk x;"
            " git -c core.hooksPath=/dev/null commit -q --allow-empty -m x && echo done",
            out="done\n", refused=2 * len(files.split()) + 1,
            holds="test $(cat ws/hk/pre-commit) = original; ! grep -q evil ws/*.conf ws/.git/inside.conf",
        )
        for text, files in {
            "[core]\\n\\thooksPath = hk  # ours\\n": "hk/pre-commit",
            "[core] hooksPath = hk\\n": "hk/pre-commit",
            '[CORE]\\n\\tHooksPath = h"k"\\n': "hk/pre-commit",
            "[core]\\n\\thooksPath = h\\\\\\nk\\n": "hk/pre-commit",
            "[core]\\n\\thooksPath = ~/ws/hk\\n": "hk/pre-commit",
            "[include]\\n\\tpath = ../outer.conf\\n": "hk/pre-commit inner.conf outer.conf",
            '[includeIf "onbranch:x"]\\n\\tpath = "../outer.conf" ; when needed\\n':
                "hk/pre-commit inner.conf outer.conf",
            "[include]\\n\\tpath = inside.conf\\n": "hk/pre-commit inner.conf .git/inside.conf",
        }.items()
    },
    "settings that are included and not there cannot be made": Layout(
        "repo ws; printf '[include]\\n\\tpath = ../local.conf\\n\\tpath = ../no/folder.conf\\n' >>ws/.git/config",
        "git commit -q --allow-empty -m x || exit 1; echo x >local.conf; rm -f local.conf; mkdir no; echo >no/x;"
        " echo done",
        out="done\n", refused=4, holds="test ! -e ws/local.conf -a ! -e ws/no",
    ),
    "hooks of a repository that is read-only stay too": Layout(
        "for n in a b c d e; do repo ws/$n; git -C ws/$n config core.hooksPath hk; mkdir ws/$n/hk; : >ws/$n/hk/x; done",
        "touch ?/hk/x ?/.git/config", refused=10,
    ),
    "very many repositories with hooks of their own do not keep commands from running": Layout(
        "for n in $(seq -w 0 99); do mkdir -p ws/r$n/.husky/_ ws/r$n/.git;"
        " printf '[core]\\n\\thooksPath = .husky/_\\n' >ws/r$n/.git/config; done",
        "touch r05/.husky/_/x r99/.git/x; echo done", out="done\n", refused=2,
        said="r99 takes hooks or settings from elsewhere",
    ),
    **{
        f"{count} bare repositories keep their hooks and settings": Layout(
            f"{BARE} ws/m1; for n in $(seq 2 {count}); do cp -r ws/m1 ws/m$n; done; rm -f ws/m*/hooks/*",
            "for f in hooks/post-update config commondir; do for m in m*; do echo evil >$m/$f; done; done;"
            f" mv m{count} x", refused=3 * count + 1,
            holds="test -z $(find ws -name commondir -o -name post-update -o -name x); ! grep -q evil ws/*/config",
        )
        for count in (1, 5)
    },
    "a command can push into a bare repository of the workspace": Layout(
        "repo ws; git clone -q --bare ws ws/mirror",
        "git commit -q --allow-empty -m second && git push -q mirror HEAD:refs/heads/x && echo done", out="done\n",
        holds="test $(git -C ws/mirror log -1 --format=%s x) = second",
    ),
    **{
        f"git works in {root} where the repository is bare and its worktrees lie beside it": Layout(
            f"{BARE} ws/.bare; echo 'gitdir: ./.bare' >ws/.git; git -C ws/.bare worktree add -q $PWD/ws/feature",
            "cd ~/ws/feature; git commit -q --allow-empty -m second || exit 1; b=../.bare; echo evil >$b/config;"
            " echo evil >$b/hooks/x", refused=2, bounds={"roots": (root,)},
            holds='test "$(subjects ws/feature)" = "second first "',
        )
        for root in ("ws", "ws/feature")
    },
    "git works where the worktree of the root is kept in a bare repository below it": Layout(
        "repo source; rmdir ws; git -C source worktree add -q $PWD/ws; git clone -q --bare source ws/.bare;"
        " mv source/.git/worktrees ws/.bare; echo 'gitdir: .bare/worktrees/ws' >ws/.git",
        "git commit -q --allow-empty -m second; echo evil >.bare/config; mv .bare x", refused=2,
        holds="test $(git -C ws log -1 --format=%s) = second",
    ),
    "git works in a submodule that is the root": Layout(
        "repo lib; repo top; git -C top -c protocol.file.allow=always submodule --quiet add $PWD/lib sub",
        "echo b >b && git add b && git commit -qm second && echo done", out="done\n",
        holds='test "$(subjects top/sub)" = "second first "', bounds={"roots": ("top/sub",)},
    ),
    "git works in a submodule of the root": Layout(
        "repo lib; repo ws; git -C ws -c protocol.file.allow=always submodule --quiet add $PWD/lib sub",
        "cd sub && git commit -q --allow-empty -m second && echo done", out="done\n",
    ),
    "a workspace that is a bare repository keeps its hooks and settings": Layout(
        f"rmdir ws; {BARE} ws", "touch note; echo evil >config; echo evil >hooks/x; git log --format=%s",
        out="first\n", refused=2, holds="test -e ws/note",
    ),
    "without git a repository is read-only and hooks it names stay": Layout(
        "repo ws; mkdir ws/hk; git -C ws config core.hooksPath hk",
        "echo evil >hk/pre-commit; echo evil >.git/hooks/pre-commit; touch .git/new; touch new", refused=3,
        holds="test -e ws/new -a ! -e ws/.git/new; test -z $(ls ws/hk)", said="git is not installed, so all of",
        bounds={"git": ""},
    ),
    "a linked folder of hooks costs the commits, not the protection": Layout(
        "repo ws; mkdir ws/githooks; rm -r ws/.git/hooks; ln -s ../githooks ws/.git/hooks",
        "rm .git/hooks; mkdir .git/hooks; git commit -q --allow-empty -m x", refused=2,
        holds="test -L ws/.git/hooks", said="cannot commit",
    ),
    "a granted path wins over a protected name": Layout(
        "mkdir ws/.vscode", "echo '{}' >.vscode/settings.json", holds="test -e ws/.vscode/settings.json",
        bounds={"protected": (".vscode",), "writable": ("ws/.vscode",)},
    ),
    "a name below a folder is protected with that folder": Layout(
        "mkdir -p ws/.github/workflows",
        "touch .github/workflows/x; mv .github g; touch .github/CODEOWNERS && echo wrote", out="wrote\n", refused=2,
        holds="test ! -e ws/.github/workflows/x -a -d ws/.github", bounds={"protected": (".github/workflows",)},
    ),
    "a workspace inside a masked folder is still reached": Layout(
        "mkdir -p secret/ws; echo SECRET >secret/key", "touch new; cat ../key; ls ..", out="", refused=2,
        holds="test -e secret/ws/new", bounds={"roots": ("secret/ws",), "masked": ("secret",)},
    ),
    # What was found before the last command need not be there any more.
    "a repository that was replaced by a link makes nothing writable": Layout(
        "repo ws; repo ws/vendor/lib; repo outside/lib",
        "touch vendor/lib/.git/x vendor/lib/x; cd vendor/lib && git branch x", refused=3,
        first="mv vendor moved; ln -s ../outside vendor", holds="test -z $(find outside -name x)",
    ),
    "a grant that leads elsewhere now makes nothing writable": Layout(
        "mkdir outside; ln -s ../outside ws/granted; echo SECRET >key; ln -s ../key ws/read",
        "touch granted/x; cat read", out="", holds="test ! -e outside/x",
        bounds={"writable": ("ws/granted",), "readable_again": ("ws/read",), "masked": ("key",)},
    ),
    "there are more mounts than a message has descriptors": Layout(
        "touch ws/name{0..79}", "for i in $(seq 0 79); do echo x >name$i; done", refused=80,
        holds="test -z $(find ws -size +0 -type f)", bounds={"protected": tuple(f"name{n}" for n in range(80))},
    ),
}  # fmt: skip


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_command_attempts_changes_nothing_that_git_obeys(bubblewrap: Confinement, base: Path, name: str) -> None:
    layout = LAYOUTS[name]
    shell(base, layout.make)
    bounds = bounds_of(base, layout.bounds)
    if layout.first:
        run(bubblewrap, bounds, layout.first)
    done = run(bubblewrap, bounds, layout.command)
    assert layout.out in (None, done.stdout), done
    assert done.stderr.count("\n") >= layout.refused, done.stderr
    shell(base, layout.holds.replace("; ", " || exit 1\n"))
    assert layout.said in " ".join(bubblewrap.limits(bounds))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("git init -q --bare x; mv x/* .", []),
        ("git init -q --bare x; mv x/* .; git config --file config core.fsmonitor ./x", ["HEAD"]),
        ("touch HEAD", []),
        ("git init -q", []),
        ("git init -q; git config core.fsmonitor ./x", [".git"]),
        ("git init -q; git config remote.x.url EXT::x", [".git"]),
        ("git init -q; echo [ >>.git/config", [".git"]),
        ("git init -q; rm .git/config; mkfifo .git/config", [".git"]),
    ],
)
def test_repositories_that_git_obeys_and_that_were_not_there_are_reported(
    base: Path, command: str, made: list[str]
) -> None:
    before = watched_states([base])
    subprocess.run(["sh", "-c", command], cwd=base, check=True, capture_output=True)
    assert [str(path.relative_to(base)) for path in find_new_or_changed(before, [base], SYSTEM_GIT)] == made
    is_one = ".git" if (base / ".git").exists() else "HEAD"
    assert [path.name for path in find_new_or_changed(before, [base], "/nowhere")] == (
        [] if command == "touch HEAD" else [is_one]
    )


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("echo evil >>.githooks/pre-commit", [".githooks"]),
        ("echo evil >.agents/skills/deploy/SKILL.md", [".agents"]),
        ("touch .jj/working_copy/state; cat .githooks/pre-commit", []),
    ],
)
def test_a_changed_file_in_a_reviewed_folder_is_reported(base: Path, command: str, changed: list[str]) -> None:
    for name in (".githooks/pre-commit", ".agents/skills/deploy/SKILL.md", ".jj/working_copy/state"):
        (base / name).parent.mkdir(parents=True)
        (base / name).write_text("theirs\n")
    before = watched_states([base])
    subprocess.run(["sh", "-c", command], cwd=base, check=True)
    assert [str(path.relative_to(base)) for path in find_new_or_changed(before, [base], SYSTEM_GIT)] == changed
