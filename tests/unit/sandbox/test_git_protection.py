"""What makes the person's git run programs cannot be written by a command, however the repository is laid out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import Bounds, Confinement
from agentcli.infra.sandbox.git.config import SYSTEM_GIT
from agentcli.infra.sandbox.protection.created_config import made_or_changed, watched
from tests.conformance.confining import git, picture, run


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def bare_from(source: Path, folder: Path) -> Path:
    git(source, "clone", "-q", "--bare", str(source), str(folder))
    return folder


def bounds_of(*roots: Path, **more: object) -> Bounds:
    return Bounds(**{"profile": "workspace-write", "roots": roots, "home": roots[0].parent} | more)


def write_config(ws: Path, text: str) -> None:
    with (ws / ".git/config").open("a") as file:
        file.write(text)


FORGERIES = {
    "itself": "echo 'gitdir: .' >.git; echo .git >gitdir; echo ../.. >commondir",
    "a folder in it": "mkdir -p a/worktrees/b; echo 'gitdir: a/worktrees/b' >.git; cd a/worktrees/b;"
    " echo ../../../.git >gitdir; echo ../../../../.. >commondir",
    "what it names as its worktree": "echo 'gitdir: ../..' >.git",
}


@pytest.mark.parametrize("forgery", list(FORGERIES))
def test_a_git_folder_that_a_command_made_makes_nothing_around_the_workspace_writable(
    bubblewrap: Confinement, base: Path, forgery: str
) -> None:
    project = base / "project"
    ws = project / "worktrees/feature"
    for folder in (ws, project / "objects", project / "refs"):
        folder.mkdir(parents=True)
    (project / "HEAD").write_text("ref: refs/heads/main\n")
    (project / "config").write_text("[core]\n\tbare = false\n")
    (project / "main.py").write_text("original")
    run(bubblewrap, bounds_of(ws), FORGERIES[forgery])
    assert (ws / ".git").exists()
    run(bubblewrap, bounds_of(ws), "echo evil >../../main.py; touch ../../new ../../objects/new")
    assert (project / "main.py").read_text() == "original"
    assert not list(base.rglob("new"))
    assert "does not lead back" in " ".join(bubblewrap.limits(bounds_of(ws)))


@pytest.mark.parametrize("where", ["cache", "writable"])
def test_nor_one_in_another_place_that_commands_can_write(bubblewrap: Confinement, base: Path, where: str) -> None:
    project, ws = base / "project", base / "ws"
    place = project / "worktrees/place"
    for folder in (ws, place, project / "objects", project / "refs"):
        folder.mkdir(parents=True)
    (project / "HEAD").write_text("ref: refs/heads/main\n")
    (project / "config").write_text("")
    bounds = bounds_of(ws, **{where: place if where == "cache" else (place,)})
    run(
        bubblewrap,
        bounds,
        f"echo 'gitdir: {place}' >.git; echo {ws}/.git >{place}/gitdir; echo ../.. >{place}/commondir",
    )
    assert (place / "commondir").exists()
    run(bubblewrap, bounds, f"touch {project}/new")
    assert not (project / "new").exists()


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\thooksPath = hk  # ours\n",
        "[core] hooksPath = hk\n",
        '[CORE]\n\tHooksPath = h"k"\n',
        "[core]\n\thooksPath = h\\\nk\n",
        "[core]\n\thooksPath = ~/ws/hk\n",
        "[include]\n\tpath = ../outer.conf\n",
        '[includeIf "onbranch:x"]\n\tpath = "../outer.conf" ; when needed\n',
        "[include]\n\tpath = inside.conf\n",
    ],
)
def test_hooks_and_settings_stay_as_they_are_however_the_configuration_names_them(
    bubblewrap: Confinement, base: Path, text: str
) -> None:
    ws = repository(base / "ws")
    (ws / "hk").mkdir()
    (ws / "hk/pre-commit").write_text("original")
    (ws / "outer.conf").write_text("[include]\n\tpath = inner.conf\n")
    (ws / "inner.conf").write_text("[core]\n\thooksPath = hk\n")
    (ws / ".git/inside.conf").write_text("[include]\n\tpath = ../inner.conf\n")
    write_config(ws, text)
    named = "hk/pre-commit" + (" inner.conf" if "path = " in text else "") + (" outer.conf" if "outer" in text else "")
    named += " .git/inside.conf" if "inside" in text else ""
    done = run(bubblewrap, bounds_of(ws), f"for file in {named}; do echo evil >$file; rm -f $file; done; mv hk x")
    assert done.stderr.count("\n") == 2 * len(named.split()) + 1, done.stderr
    assert (ws / "hk/pre-commit").read_text() == "original"
    assert not any("evil" in (ws / file).read_text() for file in named.split())
    committed = run(bubblewrap, bounds_of(ws), "git -c core.hooksPath=/dev/null commit -q --allow-empty -m x")
    assert (committed.returncode, committed.stderr) == (0, "")


def test_settings_that_are_included_and_not_there_cannot_be_made(bubblewrap: Confinement, base: Path) -> None:
    ws = repository(base / "ws")
    write_config(ws, "[include]\n\tpath = ../local.conf\n\tpath = ../no/folder.conf\n")
    before = picture(ws)
    script = (
        "git commit -q --allow-empty -m x || exit 1; echo x >local.conf; rm -f local.conf; mkdir no; echo >no/x; true"
    )
    done = run(bubblewrap, bounds_of(ws), script)
    assert (done.returncode, done.stderr.count("\n")) == (0, 4), done.stderr
    assert picture(ws).keys() - before.keys() <= {path for path in picture(ws) if ".git/" in str(path)}
    assert not (ws / "local.conf").exists()


def test_hooks_of_a_repository_that_is_read_only_stay_too(bubblewrap: Confinement, base: Path) -> None:
    ws = base / "ws"
    for name in "abcde":
        write_config(repository(ws / name), "[core]\n\thooksPath = hk\n")
        (ws / name / "hk").mkdir()
        (ws / name / "hk/pre-commit").touch()
    done = run(bubblewrap, bounds_of(ws), "touch ?/hk/pre-commit ?/.git/config")
    assert done.stderr.count("Read-only file system") == 10


@pytest.mark.slow
def test_very_many_repositories_with_hooks_of_their_own_do_not_keep_commands_from_running(
    bubblewrap: Confinement, base: Path
) -> None:
    ws = base / "ws"
    for number in range(100):
        git_folder = ws / f"r{number:02}/.git"
        (ws / f"r{number:02}/.husky/_").mkdir(parents=True)
        git_folder.mkdir()
        (git_folder / "config").write_text("[core]\n\thooksPath = .husky/_\n")
    done = run(bubblewrap, bounds_of(ws), "touch r05/.husky/_/x r99/.git/x; echo done")
    assert (done.stdout, done.stderr.count("Read-only file system")) == ("done\n", 2), done.stderr
    assert "r99 takes hooks or settings from elsewhere" in " ".join(bubblewrap.limits(bounds_of(ws)))


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
def test_repositories_that_git_obeys_and_that_were_not_there_are_told(
    base: Path, command: str, made: list[str]
) -> None:
    before = watched([base])
    subprocess.run(["sh", "-c", command], cwd=base, check=True, capture_output=True)
    assert [str(path.relative_to(base)) for path in made_or_changed(before, [base], SYSTEM_GIT)] == made
    is_one = ".git" if (base / ".git").exists() else "HEAD"
    assert [path.name for path in made_or_changed(before, [base], "/nowhere")] == (
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
def test_a_changed_file_in_a_reviewed_folder_is_told(base: Path, command: str, changed: list[str]) -> None:
    for name in (".githooks/pre-commit", ".agents/skills/deploy/SKILL.md", ".jj/working_copy/state"):
        (base / name).parent.mkdir(parents=True)
        (base / name).write_text("theirs\n")
    before = watched([base])
    subprocess.run(["sh", "-c", command], cwd=base, check=True)
    assert [str(path.relative_to(base)) for path in made_or_changed(before, [base], SYSTEM_GIT)] == changed


@pytest.mark.parametrize("count", [1, 5])
def test_bare_repositories_keep_their_hooks_and_settings(bubblewrap: Confinement, base: Path, count: int) -> None:
    source, ws = repository(base / "source"), base / "ws"
    ws.mkdir()
    names = [f"mirror{number}" for number in range(count)]
    for name in names:
        bare_from(source, ws / name)
    for name in ("hooks/post-update", "config", "commondir", "HEAD.lock"):
        run(bubblewrap, bounds_of(ws), f"for m in mirror*; do echo evil >$m/{name}; done; mv mirror{count - 1} x")
    assert not list(ws.glob("*/hooks/post-update"))
    assert not list(ws.glob("*/commondir"))
    assert "evil" not in "".join((ws / name / "config").read_text() for name in names)
    assert sorted(path.name for path in ws.iterdir()) == names


def test_a_command_can_push_into_a_bare_repository_of_the_workspace(bubblewrap: Confinement, base: Path) -> None:
    ws = repository(base / "ws")
    mirror = bare_from(ws, ws / "mirror")
    done = run(
        bubblewrap, bounds_of(ws), "git commit -q --allow-empty -m second && git push -q mirror HEAD:refs/heads/x"
    )
    assert done.returncode == 0, done.stderr
    assert git(mirror, "log", "-1", "--format=%s", "x") == "second\n"


def test_git_works_where_the_repository_is_bare_and_its_worktrees_lie_beside_it(
    bubblewrap: Confinement, base: Path
) -> None:
    ws = base / "ws"
    ws.mkdir()
    bare = bare_from(repository(base / "source"), ws / ".bare")
    (ws / ".git").write_text("gitdir: ./.bare\n")
    git(bare, "worktree", "add", "-q", str(ws / "feature"))
    for roots, cwd in (((ws,), ws / "feature"), ((ws / "feature",), ws / "feature")):
        script = f"git commit -q --allow-empty -m second || exit 1; echo evil >{bare}/config; echo evil >{bare}/hooks/x"
        done = run(bubblewrap, bounds_of(*roots), script, cwd=cwd)
        assert done.stderr.count("Read-only file system") == 2, done.stderr
    assert git(ws / "feature", "log", "--format=%s").split() == ["second", "second", "first"]
    assert bubblewrap.limits(bounds_of(ws)) == ()


def test_git_works_where_the_worktree_of_the_root_is_kept_in_a_bare_repository_below_it(
    bubblewrap: Confinement, base: Path
) -> None:
    ws = base / "ws"
    source = repository(base / "source")
    git(source, "worktree", "add", "-q", str(ws))
    bare = bare_from(source, ws / ".bare")
    (source / ".git/worktrees").rename(bare / "worktrees")
    (ws / ".git").write_text("gitdir: .bare/worktrees/ws\n")
    done = run(bubblewrap, bounds_of(ws), "git commit -q --allow-empty -m second; echo evil >.bare/config; mv .bare x")
    assert done.stderr.count("\n") == 2, done.stderr
    assert git(ws, "log", "-1", "--format=%s") == "second\n"


def test_a_workspace_that_is_a_bare_repository_keeps_its_hooks_and_settings(
    bubblewrap: Confinement, base: Path
) -> None:
    ws = bare_from(repository(base / "source"), base / "ws")
    done = run(bubblewrap, bounds_of(ws), "touch note; echo evil >config; echo evil >hooks/x; git log --format=%s")
    assert (done.stdout, done.stderr.count("Read-only file system")) == ("first\n", 2)
    assert (ws / "note").exists()


def test_without_git_a_repository_is_read_only_and_hooks_it_names_stay(bubblewrap: Confinement, base: Path) -> None:
    ws = repository(base / "ws")
    (ws / "hk").mkdir()
    write_config(ws, "[core]\n\thooksPath = hk\n")
    bounds = bounds_of(ws, git="")
    run(bubblewrap, bounds, "echo evil >hk/pre-commit; echo evil >.git/hooks/pre-commit; touch .git/new; touch new")
    assert (ws / "new").exists()
    assert not list((ws / "hk").iterdir())
    assert not (ws / ".git/new").exists()
    assert "git is not installed, so all of" in " ".join(bubblewrap.limits(bounds))
