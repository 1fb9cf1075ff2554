"""The container sandbox with a real engine: podman as `docker`, with an image made of this machine's files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app import running
from tests.app.running import Place, call

pytestmark = pytest.mark.slow

IMAGE = "agentcli-test"
PROGRAMS = "bash sh cat ls touch mkdir rm sleep id env head grep true false git".split()
BYPASS = ("--permission-mode", "bypassPermissions")


def root_tree(folder: Path) -> Path:
    """A root file system with a shell and a few programs, as they are here."""
    for name in ("usr/bin", "etc", "tmp", "proc", "sys", "dev"):
        (folder / name).mkdir(parents=True)
    (folder / "bin").symlink_to("usr/bin")
    for name in PROGRAMS:
        program = Path(shutil.which(name, path="/usr/bin:/bin") or "").resolve()
        if program.is_file():
            shutil.copy(program, folder / "usr/bin" / name)
            for library in libraries(program):
                target = folder / library.relative_to("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, target)
    return folder


def libraries(program: Path) -> Iterator[Path]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    yield from (Path(word) for word in listed.split() if word.startswith("/") and Path(word).is_file())


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment in which `docker` is podman, with limits that need no rights of their own."""
    if os.getuid() != 0 or shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("needs podman and runc, and root")
    folder = tmp_path_factory.mktemp("engine")
    (folder / "programs").mkdir()
    limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1] for name in ("nofile", "nproc")}
    limits = {name: min(limit if limit > 0 else 4_096, 4_096) for name, limit in limits.items()}
    ulimits = json.dumps([f"{name}={limit}:{limit}" for name, limit in limits.items()])
    # Locks and state of its own: engines that run at once, each with its own images, share them otherwise.
    own = f'tmp_dir = "{folder}/state"\nlock_type = "file"\n'
    (folder / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = {ulimits}\n[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n{own}'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
    )
    docker = folder / "programs/docker"
    docker.write_text(
        f"#!/bin/sh\nexport CONTAINERS_CONF={folder}/containers.conf CONTAINERS_STORAGE_CONF={folder}/storage.conf\n"
        'exec podman "$@"\n'
    )
    docker.chmod(0o755)
    environment = {
        "PATH": f"{folder}/programs:{os.environ['PATH']}",
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    tree = root_tree(folder / "root")
    subprocess.run(["tar", "-C", tree, "-cf", folder / "root.tar", "."], check=True)
    imported = ["podman", "import", folder / "root.tar", IMAGE]
    subprocess.run(imported, check=True, capture_output=True, env=os.environ | environment)
    yield environment
    subprocess.run(["podman", "rmi", "--force", IMAGE], check=False, capture_output=True, env=os.environ | environment)


@pytest.fixture
def place(place: Place, engine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(running, "PATIENCE_S", 240.0)  # a container may take 20 s to start beside other tests
    place.environment |= engine | {"AGENTCLI_SANDBOX_KIND": "docker", "AGENTCLI_SANDBOX_DOCKER_IMAGE": IMAGE}
    return place


def output_of(place: Place, *commands: str) -> list[str]:
    calls = [{"tool_calls": [call("bash", command=command)]} for command in commands]
    flags = ("--output-format", "stream-json", *BYPASS)
    ran = place.run("-p", "go", "-m", place.script(*calls, {"text": "done"}), *flags)
    assert ran.code == 0, ran.err
    return [line["message"]["content"][0].get("content", "") for line in ran.of("user")]


@pytest.mark.full
def test_commands_run_in_the_image_and_write_the_workspace(place: Place) -> None:
    said = output_of(
        place, "echo hello >made.txt; cat made.txt; ls /", "exit 3", "touch /etc/x", "git init -q .; ls -a"
    )
    assert said[0].startswith("hello")
    assert "root" not in said[0].split()  # this machine's, which the image does not have
    assert "3" in said[1]
    assert "Read-only file system" in said[2]
    assert ".git" in said[3]
    assert (place.folder / "made.txt").read_text() == "hello\n"


@pytest.mark.full
def test_commands_reach_no_host_and_see_no_secret_file(place: Place) -> None:
    (place.folder / ".env").write_text("TOKEN=very-secret\n")
    hidden, network = output_of(place, "cat .env; echo read $?", "cat /proc/net/dev")
    assert "very-secret" not in hidden
    assert [line.split(":")[0].strip() for line in network.splitlines() if ":" in line] == ["lo"]


def test_no_container_is_left_behind(place: Place, engine: dict[str, str]) -> None:
    calls = {"tool_calls": [call("bash", command="sleep 300", timeout_ms=1_000)]}
    ran = place.run("-p", "go", "-m", place.script(calls, {"text": "done"}), *BYPASS)
    assert ran.code == 0, ran.err
    left = subprocess.run(
        ["podman", "ps", "--all", "--quiet"], capture_output=True, text=True, check=True, env=os.environ | engine
    )
    assert left.stdout == ""
