"""What the commands of a session may do, put together from settings and from what is there."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.processes.stall import is_listened_on
from agentcli.infra.sandbox.protection import snapshot
from agentcli.infra.sandbox.protection.auto_executed import present_names
from agentcli.infra.sandbox.session_confinement import CommandLimits, SessionFolders
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.command import NO_GRANTS, Command, Grants, Profile, Reverts
from agentcli.tools.tool import ToolContext, ToolOutput, ToolRegistry
from agentcli.tools.workspace import Workspace
from tests.conformance.confining import confinement_for, folder_on_disk

T = TypeVar("T")


@pytest.fixture
def home() -> Iterator[Path]:
    with folder_on_disk() as folder:
        yield folder


@pytest.fixture
def root(home: Path) -> Path:
    (root := home / "ws").mkdir()
    return root


def result_of(sandbox: LocalSandbox, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; the sandbox is closed then."""

    async def run() -> T:
        try:
            return await work
        finally:
            await sandbox.aclose()

    return asyncio.run(run())


def said_by(sandbox: LocalSandbox, *commands: str) -> list[tuple[int, str]]:
    """The exit code and the output of each command, run one after the other."""

    async def run() -> list[tuple[int, str]]:
        results = [await sandbox.run(Command(c, root_of(sandbox), timeout_s=20)) for c in commands]
        return [(result.exit_code, result.output) for result in results]

    return result_of(sandbox, run())


def root_of(sandbox: LocalSandbox) -> Path:
    return sandbox.facts().roots[0]


def output_of(sandbox: LocalSandbox, command: str) -> ToolOutput:
    tool = ToolRegistry(builtin_tools()).get("bash")
    context = ToolContext(Workspace(cwd=root_of(sandbox), sandbox=sandbox), "id")
    return result_of(sandbox, tool.run(tool.parse({"command": command}), context))


def told(sandbox: LocalSandbox, command: str) -> str:
    """What the model is told of a command."""
    return str(output_of(sandbox, command).content)


def sandbox_in(root: Path, home: Path, *own: Path, profile: Profile = "workspace-write") -> LocalSandbox:
    return LocalSandbox(
        [root],
        environment={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        job_folder=home.parent / f"{home.name}.jobs",
        limits=CommandLimits(profile=profile, home=home, folders=SessionFolders(own=own)),
        choose=lambda: confinement_for("bubblewrap, root" if os.getuid() == 0 else "bubblewrap, user")[0],
    )


def test_a_git_that_a_command_put_on_the_path_is_not_run_outside_of_the_sandbox(home: Path, root: Path) -> None:
    """The folder of a virtual environment is often on the PATH, and in the workspace."""
    (marks := home / "marks").mkdir()
    (root / ".env").write_text("TOKEN=kT9sQ2vXb7LmZr4WcYpH8nDf\n")
    limits = CommandLimits(profile="workspace-write", home=home)
    path = f"{root}/bin:/usr/bin:/bin"
    sandbox = LocalSandbox([root], environment={"PATH": path}, job_folder=home / "jobs", limits=limits)
    script = f"#!/bin/sh\ntouch {marks}/ran\n"
    said_by(sandbox, f"git init -q; mkdir bin; printf '{script}' >bin/git; chmod +x bin/git")
    assert "kT9sQ2vXb7LmZr4WcYpH8nDf" in sandbox.facts().secret_values()
    assert everything_in(marks) == {}


def test_hooks_that_the_person_makes_and_removes_where_a_mount_point_was_are_noticed(home: Path, root: Path) -> None:
    subprocess.run(["git", "init", "-q", "--template=", root], check=True)
    sandbox, hooks = sandbox_in(root, home), root / ".git/hooks"
    script = "mkdir .git/hooks 2>/dev/null; touch .git/hooks/pre-commit 2>/dev/null || echo kept"

    async def outputs() -> list[str]:
        said = []
        for change in (lambda: None, hooks.mkdir, hooks.rmdir):
            change()
            await asyncio.sleep(0.05)  # what has just changed is looked at again
            said += [(await sandbox.run(Command(script, root, 20))).output for _ in range(2)]
        return said

    assert result_of(sandbox, outputs()) == ["kept\n"] * 6


@pytest.mark.parametrize("profile", ["workspace-write", "read-only"])
def test_a_command_that_only_reads_reaches_no_host(
    home: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := home / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    sandbox, script = sandbox_in(home, home, profile=profile), "env | grep -qi ^https_proxy && echo proxy"

    async def outputs() -> list[str]:
        hosts = Grants(hosts=("example.org",))
        commands = [(None, hosts), ("read-only", hosts), (None, Grants())]
        given = [Command(script, home, 20, profile=profile, grants=grants) for profile, grants in commands]
        outputs = [(await sandbox.run(command)).output for command in given]
        shutil.rmtree(folder)  # as what tidies up old temporary files does, which is no reason to fail at the end
        return outputs

    assert result_of(sandbox, outputs()) == ["proxy\n", "", ""]


def test_a_host_is_open_to_no_command_but_the_one_that_it_was_granted_to(home: Path) -> None:
    sandbox = sandbox_in(home, home)

    async def outputs() -> list[str]:
        server = await asyncio.start_server(lambda _, writer: writer.write(b"HTTP/1.1 204 Yes\r\n\r\n"), "127.0.0.1")
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        program = f'from urllib.request import *; print(urlopen("http://{host}").status)'
        script = f"no_proxy= NO_PROXY= python3 -c '{program}' 2>&1 | tail -n1"
        each = (Command(script, home, 20, grants=Grants(hosts=(granted,))) for granted in (host, "example.org"))
        async with server:
            return [result.output for result in await asyncio.gather(*map(sandbox.run, each))]

    granted, other = result_of(sandbox, outputs())
    assert granted == "204\n"
    assert "403: agentcli: host 127.0.0.1" in other


def everything_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


HOSTILE = (
    "mv .config/agentcli .config/other; mkdir -p .config/agentcli; echo x >.config/agentcli/config.toml",
    "mv .config .other; mkdir -p .config/agentcli; echo x >.config/agentcli/config.toml",
    "for name in .profile .bashrc .zshrc .gitconfig; do echo x >$name; done",
    "mkdir -p .config/autostart .config/systemd/user; echo x >.config/autostart/a; echo x >.config/systemd/user/a",
    "echo x >.local/bin/tool; echo x >.config/fish/config.fish",
)


def test_names_in_a_folder_that_cannot_be_listed_may_exist(tmp_path: Path) -> None:
    """A home may be entered and not listed: its secret files are hidden all the same."""
    assert present_names(tmp_path / "unlisted", (".ssh", "*.x", ".config/gh")) == [".ssh", ".config/gh"]
    (tmp_path / ".config").mkdir()
    (tmp_path / "a.x").touch()
    assert present_names(tmp_path, (".ssh", "*.x", ".config/gh")) == [".config/gh", "a.x"]


@pytest.mark.slow
def test_a_home_as_the_workspace_keeps_what_starts_programs_and_agentcli_s_own_settings(home: Path) -> None:
    for name in (".config/agentcli/config.toml", ".local/bin/tool", ".config/fish/config.fish", ".bashrc"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")
    before = everything_in(home)
    results = said_by(sandbox_in(home, home, home / ".config/agentcli"), *HOSTILE, "echo x >project.txt")
    assert everything_in(home) == before | {"project.txt": "x\n"}
    assert results[-1] == (0, "")


def test_a_secret_file_among_installed_packages_is_hidden(home: Path, root: Path) -> None:
    for folder in ("target", "venv", "node_modules", "src/target"):
        (root / folder).mkdir(parents=True)
        (root / folder / ".env").write_text("KEY=xyz\n")
    ((code, output),) = said_by(sandbox_in(root, home), "grep -r KEY .")
    assert code
    assert "xyz" not in output


def test_git_starts_nothing_that_a_folder_within_a_working_copy_names(home: Path, root: Path) -> None:
    for name in ("bare/objects", "bare/refs"):
        (root / name).mkdir(parents=True)
    (root / "bare/HEAD").write_text("ref: refs/heads/main\n")
    program = root / "started.sh"
    program.write_text("#!/bin/sh\ntouch started\n")
    program.chmod(0o755)
    settings = f"[core]\nrepositoryformatversion = 0\nbare = false\nworktree = ..\nfsmonitor = {program}\n"
    (root / "bare/config").write_text(settings)
    ((code, output),) = said_by(sandbox_in(root, home), "git -C bare status")
    assert code
    assert "safe.bareRepository" in output
    assert not (root / "started").exists()


def test_auto_executed_files_in_subfolders_are_not_written(home: Path, root: Path) -> None:
    for name in (
        "app/.vscode/tasks.json",
        "app/deep/er/.exrc",
        "app/.mcp.json",
        "app/x.code-workspace",
        ".Rprofile",
        ".jj/repo/config.toml",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("mine")
    before = everything_in(root)
    commands = (f"echo x >{name}; mv {name} gone; rm -rf {name}" for name in before)
    said_by(sandbox_in(root, home), *commands, "mv app/.vscode app/other; mkdir app/.vscode", "mv app other")
    assert {name: text for name, text in everything_in(root).items() if name != "gone"} == before


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("mkdir .gemini && echo x >.gemini/settings.json", [".gemini"]),
        ("echo x >.pre-commit-config.yaml; echo x >lefthook.yml", [".pre-commit-config.yaml", "lefthook.yml"]),
        ("git init -q && git config user.name me && git remote add origin https://example.org/x", []),
        ("git init -q && git config core.fsmonitor ./x", [".git"]),
        ("git init -q && git config alias.st '!./x'", [".git"]),
        ("git init -q && git config remote.origin.url 'ext::sh -c x'", [".git"]),
        ("git init -q && echo x >.git/hooks/post-checkout", [".git"]),
        ("mkdir src && echo x >src/a.py", []),
        ("echo x >opencode.json; echo x >a.code-workspace", ["opencode.json", "a.code-workspace"]),
        ("echo x >.envrc", [".envrc"]),
        ("cat .envrc", []),
        ("touch -r .envrc x; printf evil >.envrc; touch -r x .envrc", [".envrc"]),
    ],
)
def test_auto_executed_files_that_a_command_changes_are_reported(
    home: Path, root: Path, command: str, made: list[str]
) -> None:
    (root / ".envrc").write_text("mine")
    sandbox = sandbox_in(root, home)

    result = result_of(sandbox, sandbox.run(Command(command, root, timeout_s=20)))
    assert [path.name for path in result.made] == made


HOSTS = "the sandbox lets commands reach only"


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("mkdir .vscode; echo x >.vscode/tasks.json", "the sandbox does not let commands write .vscode"),
        ("git config core.pager ./x", "the sandbox keeps git's settings"),
        ("rm -r .idea", "the sandbox does not let commands write .idea"),
        ("mv .idea away; cat missing", "the sandbox does not let commands write .idea"),
        ("rm -r .idea; true", "the sandbox does not let commands write .idea"),
        ("cat .idea/missing", ""),
        ("cat .env", "the sandbox hides .env"),
        ("echo x >/etc/passwd", ""),
        ("cat /tmp/log.txt", "/tmp is new and"),
        ("cat /tmp/log.txt 2>/dev/null; echo /tmp/log.txt", ""),
        ("cat tmp/log.txt", ""),
        ("cat $PWD/log.txt", ""),
        ("git ls-remote https://example.org/x.git", HOSTS),
        ("python3 -c \"import socket; socket.getaddrinfo('example.org', 80)\"", HOSTS),
    ],
)
def test_failures_caused_by_the_sandbox_are_explained(home: Path, root: Path, command: str, note: str) -> None:
    (root / ".idea").mkdir()
    (root / ".idea/workspace.xml").write_text("mine")
    (root / ".env").write_text("mine")
    said_by(sandbox := sandbox_in(root, home), "git init -q")
    notes = re.findall(r"^\[((?:the sandbox|/tmp is).*)\]$", told(sandbox, command), re.MULTILINE)
    assert [found[: len(note)] for found in notes] == ([note] if note else [])


def test_the_row_of_a_push_says_that_no_upstream_was_set(home: Path, root: Path) -> None:
    sandbox = sandbox_in(root, home)
    commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first"
    said_by(sandbox, f"git init -q -b main; {commit}; git init -q --bare remote.git")
    summary = output_of(sandbox, "git push -q -u ./remote.git main").summary
    assert summary.endswith("; .git/config was not written")


def test_programs_that_list_processes_do_not_see_all_the_mounts(home: Path, root: Path) -> None:
    ((code, output),) = said_by(
        sandbox_in(root, home), "cat /proc/1/cmdline | tr '\\0' ' '; ls -l /proc/1/fd /proc/self/fd"
    )
    assert code is not None
    assert "bwrap --args" in output
    assert "--ro-bind" not in output


def test_git_takes_the_files_that_a_project_reviews_from_branch_to_branch(home: Path, root: Path) -> None:
    (root / "lib").mkdir()
    commit = "git -c user.name=x -c user.email=x@example.org commit -q -m"
    said = said_by(
        sandbox_in(root, home),
        "git init -q -b main",
        "for name in .gitattributes .pre-commit-config.yaml .envrc lib/.gitattributes; do echo '# 1' >$name; done",
        f"git add . && {commit} 1 && git checkout -q -b other",
        "for name in .gitattributes .pre-commit-config.yaml .envrc lib/.gitattributes; do echo '# 2' >$name; done",
        f"{commit} 2 -a",
        "git checkout -q main && cat .gitattributes .pre-commit-config.yaml .envrc lib/.gitattributes && git status -s",
    )
    assert said[-1] == (0, "# 1\n" * 4), said


def test_git_takes_a_secret_file_that_is_in_the_repository_for_unchanged(home: Path, root: Path) -> None:
    for name in (".env.development", "key.pem", "a.txt"):
        (root / name).write_text("a secret\n")
        os.utime(root / name, (1, 1))  # older than the index: git need not read it to know
    commit = "git -c user.name=x -c user.email=x@example.org commit -q -m"
    subprocess.run(["sh", "-c", f"git init -q && git add . && {commit} 1"], cwd=root, check=True)
    status, read, changed, shown = said_by(
        sandbox_in(root, home),
        "git status --short",
        "cat .env.development key.pem; chmod 644 key.pem; echo x >key.pem",
        f"echo more >>a.txt; {commit} 2 -a",
        "git show --stat --format= HEAD; git status --short",
    )
    assert status == changed == (0, "")
    assert read[0]
    assert "secret" not in read[1]
    assert shown[0] == 0
    assert shown[1].split() == ["a.txt", "|", "1", "+", "1", "file", "changed,", "1", "insertion(+)"]
    assert (root / "key.pem").read_text() == "a secret\n"


def test_no_command_begins_while_what_a_killed_session_left_is_put_back(
    home: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "jobs/state/put_aside/unfinished").mkdir(parents=True)
    sandbox = LocalSandbox([root], environment={}, job_folder=home / "jobs")
    begun, may_end, order = threading.Event(), threading.Event(), list[str]()

    def put_back(folder: Path) -> Reverts:
        begun.set()
        may_end.wait(5)
        order.append("reverted")
        return Reverts()

    async def begin_commands() -> None:
        first = asyncio.create_task(sandbox.confinement.make_ready(NO_GRANTS))
        await asyncio.to_thread(begun.wait, 5)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        await sandbox.confinement.make_ready(NO_GRANTS)
        order.append("ready")
        may_end.set()
        await first

    monkeypatch.setattr(snapshot, "clean_up_killed_sessions", put_back)
    result_of(sandbox, begin_commands())
    assert order == ["reverted", "ready"]


_SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    with server.accept()[0] as client:
        client.send(sys.argv[2].encode())
"""
_CLIENT = """
import socket, sys
print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 9).recv(99).decode())
"""


def test_a_granted_port_of_this_machine_is_the_persons_server_or_a_jobs_for_every_program(home: Path) -> None:
    sandbox = sandbox_in(home, home)
    (home / "server.py").write_text(_SERVER)
    (home / "client.py").write_text(_CLIENT)

    async def ask(host: str, port: int, *hosts: str, **more: Any) -> str:
        script = f"python3 client.py {host} {port} 2>&1 | tail -n1"
        result = await sandbox.run(Command(script, home, 20, grants=Grants(hosts=hosts), **more))
        return result.output.strip()

    async def outputs() -> list[str]:
        def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"the person's")
            writer.close()

        (is_job := asyncio.Event()).set()
        async with await asyncio.start_server(serve, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            free = next(number for number in range(port + 1, 65_000) if not is_listened_on(number))
            await sandbox.run(Command(f"python3 server.py {free} 'the job'", home), detach=is_job)
            await asyncio.sleep(1)
            return [
                await ask("127.0.0.1", port, f"127.0.0.1:{port}"),
                await ask("localhost", port, f"localhost:{port}"),
                await ask("127.0.0.1", free, f"127.0.0.1:{free}"),
                await ask("127.0.0.1", port, f"127.0.0.1:{free}"),
                await ask("127.0.0.1", free),
                await ask("127.0.0.1", port, f"127.0.0.1:{port}", profile="read-only"),
            ]

    *reached, other, none, reading = result_of(sandbox, outputs())
    assert reached == ["the person's", "the person's", "the job"]
    assert all("refused" in each for each in (other, none, reading))


def test_a_command_may_listen_on_a_granted_port_itself(home: Path) -> None:
    sandbox = sandbox_in(home, home)
    (home / "server.py").write_text(_SERVER)
    (home / "client.py").write_text(_CLIENT)
    script = "python3 server.py 47123 its-own & sleep 1; python3 client.py 127.0.0.1 47123"
    command = Command(script, home, 20, grants=Grants(hosts=("127.0.0.1:47123",)))
    assert result_of(sandbox, sandbox.run(command)).output.strip() == "its-own"
