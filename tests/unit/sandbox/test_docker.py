"""Commands in a container: what docker is told, by a program that stands for it and runs the command itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agentcli.infra.sandbox.backends.choosing import Docker
from agentcli.infra.sandbox.confinement import Bounds, Launch
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.session_confinement import CommandLimits
from tests.conformance.confining import wait_until

# Notes its arguments, one a line and an empty one at the end, and runs what comes after the image.
_FAKE = """#!/bin/sh
[ "$1" = version ] && exit 0
for argument; do printf '%s\\n' "$argument"; done >>"{log}"; echo >>"{log}"
[ "$1" = run ] || exit 0
while [ "$1" != image ]; do case "$1" in --workdir=*) cd "${{1#--workdir=}}" ;; esac; shift; done
shift; exec "$@"
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    (tmp_path / "docker").write_text(_FAKE.format(log=tmp_path / "log"))
    (tmp_path / "docker").chmod(0o755)
    return tmp_path / "log"


def docker(log: Path) -> Docker:
    return Docker("image", program=str(log.parent / "docker"))


def calls(log: Path) -> list[list[str]]:
    return [call.splitlines() for call in log.read_text().split("\n\n") if call]


def run(confinement: Docker, bounds: Bounds, *argv: str) -> tuple[Launch, str]:
    with confinement.launch(argv, cwd=bounds.roots[0], bounds=bounds) as launch:
        done = subprocess.run(launch.argv, capture_output=True, text=True, check=True)
    return launch, done.stdout


def test_a_command_runs_in_a_container_without_rights_that_is_removed(log: Path) -> None:
    ws = log.parent / "ws"
    _, output = run(docker(log), Bounds(profile="workspace-write", roots=(ws,), home=log.parent), "pwd")
    assert output == f"{ws}\n"
    started, removed = calls(log)
    for option in (
        "--rm", "--init", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only",
        "--memory=4g", "--pids-limit=512", f"--user={os.getuid()}:{os.getgid()}",
        f"--mount=type=bind,source={ws},destination={ws}", f"--workdir={ws}",
    ):  # fmt: skip
        assert option in started
    assert any(option.startswith("--tmpfs=/tmp:") for option in started)
    name = next(option for option in started if option.startswith("--name=")).removeprefix("--name=")
    assert removed == ["rm", "--force", name]


def test_protected_and_secret_paths_are_mounted_over(log: Path) -> None:
    ws = log.parent / "ws"
    for name in (".git/hooks", ".git/info", ".vscode", "keys"):
        (ws / name).mkdir(parents=True)
    for name in (".git/HEAD", ".git/config", ".env"):
        (ws / name).touch()
    bounds = Bounds(
        profile="workspace-write", roots=(ws,), home=log.parent, masked=(ws / ".env", ws / "keys", log.parent / "log"),
        protected=(".vscode", ".agentcli"),
    )  # fmt: skip
    launch, listed = run(docker(log), bounds, "ls", "-A")
    mounts = [option.removeprefix("--mount=") for option in launch.argv if option.startswith("--mount=")]
    for name in (".git/hooks", ".git/config", ".git/commondir", ".vscode", ".agentcli"):
        assert f"type=bind,source={ws / name},destination={ws / name},readonly" in mounts
    assert f"type=bind,source=/dev/null,destination={ws / '.env'},readonly" in mounts
    assert any(mount.startswith(f"type=tmpfs,destination={ws / 'keys'},") for mount in mounts)
    assert not any(str(log) in mount for mount in mounts)  # what is not in the container need not be hidden
    assert ".agentcli" in listed
    assert not (ws / ".agentcli").exists()


def test_a_granted_folder_with_protected_ones_in_it_is_mounted_once(log: Path) -> None:
    github = log.parent / "ws/.github"
    (github / "workflows").mkdir(parents=True)
    bounds = Bounds(
        profile="workspace-write", roots=(github.parent,), home=log.parent, writable=(github,),
        protected=(".github/workflows",),
    )  # fmt: skip
    launch, _ = run(docker(log), bounds, "true")
    assert [option for option in launch.argv if option.endswith(f"destination={github}")] == [
        f"--mount=type=bind,source={github},destination={github}"
    ]


def test_a_link_in_place_of_a_granted_folder_is_not_mounted(log: Path) -> None:
    granted = log.parent / "granted"
    granted.symlink_to(log.parent)
    bounds = Bounds(profile="workspace-write", roots=(log.parent / "ws",), home=log.parent, writable=(granted,))
    launch, _ = run(docker(log), bounds, "true")
    assert [option for option in launch.argv if option.endswith(f"destination={log.parent}")] == []


def test_reading_only(log: Path) -> None:
    ws = log.parent / "ws"
    launch, _ = run(docker(log), Bounds(profile="read-only", roots=(ws,), home=log.parent, writable=(ws,)), "true")
    assert f"--mount=type=bind,source={ws},destination={ws},readonly" in launch.argv
    assert f"--mount=type=bind,source={ws},destination={ws}" not in launch.argv


def test_a_container_whose_client_was_killed_is_removed(log: Path) -> None:
    ws = log.parent / "ws"
    confinement = docker(log)
    with confinement.launch(
        ["sleep", "60"], cwd=ws, bounds=Bounds(profile="workspace-write", roots=(ws,), home=ws)
    ) as launch:
        process = subprocess.Popen(launch.argv)
        wait_until(lambda: log.exists() and log.read_text().endswith("\n\n"))  # the call is noted whole
        process.kill()
        process.wait()
    assert calls(log)[-1][0] == "rm"


def test_a_path_that_docker_would_misread_is_refused(log: Path) -> None:
    odd = log.parent / "a,readonly"
    odd.mkdir()
    with (
        pytest.raises(OSError, match="comma"),
        docker(log).launch(["true"], cwd=odd, bounds=Bounds(profile="workspace-write", roots=(odd,), home=odd)),
    ):
        pass


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\necho 'Cannot connect to the Docker daemon.' >&2; exit 1\n", "Cannot connect to the Docker daemon"),
        (None, "No such file or directory"),
    ],
)
def test_a_daemon_that_does_not_answer_is_reported_before_any_command(log: Path, script: str | None, why: str) -> None:
    program = log.parent / "docker"
    program.unlink()
    if script is not None:
        program.write_text(script)
        program.chmod(0o755)
    sandbox = LocalSandbox(
        [log.parent / "ws"],
        environment={},
        job_folder=log.parent / "jobs",
        limits=CommandLimits(profile="workspace-write", home=log.parent),
        choose=lambda: docker(log),
    )
    assert f"NO COMMAND CAN RUN: {program} does not answer: {why}. Start its daemon" in sandbox.facts().warning
    assert LocalSandbox([log.parent], environment={}, job_folder=log.parent / "jobs").facts().warning == ""
