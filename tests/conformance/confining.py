"""What the tests of confinement share: who runs, in which confinement, in which surroundings."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentcli.infra.sandbox.backends.choosing import choose_confinement
from agentcli.infra.sandbox.backends.linux import PROGRAMS, Bubblewrap, Landlock, render_mounts
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Unconfined

NOBODY = 65534
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def confinement_for(variant: str) -> tuple[Confinement, int]:
    """The confinement and the user to run it as, from `KIND, WHO`; skips where this machine or this user cannot.

    Kinds: bubblewrap, landlock, nothing. Who: root, user, and (as in many containers) root in a user namespace.
    """
    kind, _, who = variant.partition(", ")
    uid = NOBODY if who == "user" and os.getuid() == 0 else os.getuid()
    if who.startswith("root") and uid != 0:
        pytest.skip("needs root")
    if kind == "nothing":
        return Unconfined(), uid
    chosen = choose_confinement(tmp=Path(tempfile.gettempdir()), kinds=(kind,))
    if chosen.name != kind:
        pytest.skip(chosen.problem)
    if kind == "landlock":
        return Landlock(tmp=Path(tempfile.gettempdir()), python=python_of(uid)), uid
    program = next(program for program in PROGRAMS if program.is_file())
    hidden = Path(tempfile.gettempdir(), f"agentcli-hidden-{uid}")
    return Bubblewrap(program, "all but user" if who == "root" else "all", hidden=hidden), uid


@cache
def python_of(uid: int) -> Path:
    """An interpreter that this user can run."""
    for candidate in (Path(sys.executable).resolve(), Path("/usr/bin/python3")):
        if candidate.exists() and as_user(uid, lambda path=candidate: os.access(path, os.X_OK)):
            return candidate
    pytest.skip(f"no Python that user {uid} can run")


def as_user(uid: int, work: Callable[[], Any]) -> Any:
    """What `work` gives when this user does it: in a fork, because there is no way back from it."""
    if uid == os.getuid():
        return work()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            try:
                result = (True, work())
            except Exception as error:
                result = (False, f"{type(error).__name__}: {error}")
            with os.fdopen(write, "wb") as file:
                pickle.dump(result, file)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    worked, value = pickle.loads(data)
    assert worked, value
    return value


def run(
    confinement: Confinement,
    bounds: Bounds,
    argv: Sequence[str] | str,
    *,
    cwd: Path | None = None,
    uid: int | None = None,
    environment: Mapping[str, str] = {},
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; a string is for bash."""
    where = cwd or bounds.roots[0]

    def once() -> tuple[subprocess.CompletedProcess[str], str]:
        command = ["bash", "--noprofile", "--norc", "-c", argv] if isinstance(argv, str) else argv
        with confinement.launch(command, cwd=where, bounds=bounds) as planned, render_mounts(planned) as launch:
            done = subprocess.run(
                launch.argv,
                cwd=where,
                env={**clean_environment(bounds.home), **launch.environment, **environment},
                pass_fds=launch.pass_fds,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            return done, launch.setup_error_prefix

    def work() -> subprocess.CompletedProcess[str]:
        """As `Shell` does: again where what the sandbox was planned around has gone, as sockets of other tests do."""
        for _ in range(5):
            done, refusal = once()
            if not refusal or not done.stderr.startswith(refusal):
                break
        return done

    return as_user(os.getuid() if uid is None else uid, work)


def clean_environment(home: Path) -> dict[str, str]:
    who = {f"GIT_{role}_{what}": "probe" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": str(home), **who}


def git(folder: Path, *arguments: str) -> str:
    """Git outside the sandbox, with nobody's configuration."""
    environment = {**clean_environment(folder), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    options = ["-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", "-c", "safe.directory=*"]
    done = subprocess.run(
        ["git", *options, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def give_to(uid: int, folder: Path) -> None:
    if uid != os.getuid():
        for path in (folder, *folder.rglob("*")):
            os.lchown(path, uid, uid)


@contextlib.contextmanager
def folder_on_disk() -> Iterator[Path]:
    """A folder that is not in one of those that a sandbox replaces, where a user who is not root gets to as well."""
    for parent in ("/var/lib", "/opt", str(Path.home()), str(Path.cwd())):
        if os.access(parent, os.W_OK) and not parent.startswith(("/tmp", "/run", "/var/tmp", "/dev")):
            folder = Path(tempfile.mkdtemp(prefix="agentcli-test-", dir=parent))
            folder.chmod(0o755)
            break
    else:
        pytest.skip("no folder outside /tmp can be written")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Surroundings:
    """A home with secrets, a workspace with a repository, a folder outside, what listens and what runs here."""

    def __init__(self, base: Path, uid: int) -> None:
        self.uid = uid
        self.home, self.ws, self.outside, self.granted = (base / n for n in ("home", "ws", "outside", "granted"))
        self.packets: list[str] = []
        self._open: list[socket.socket] = []
        for folder in (self.home, self.ws, self.outside, self.granted):
            folder.mkdir()
        self.tmp_folder = Path(tempfile.mkdtemp(prefix="agentcli-test-"))
        self._make_secrets()
        make_repository(self.ws)
        give_to(uid, base)
        give_to(uid, self.tmp_folder)
        self.victim = subprocess.Popen(
            ["sleep", "600"], env={"VICTIM": "SECRET", "PATH": PATH}, user=uid, stdin=subprocess.DEVNULL
        )

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for one in self._open:
            one.close()
        shutil.rmtree(self.tmp_folder)

    def _make_secrets(self) -> None:
        for name in (".ssh/id_ed25519", ".ssh/known_hosts", ".netrc", "real-keys/key"):
            (self.home / name).parent.mkdir(exist_ok=True)
            (self.home / name).write_text("SECRET")
        (self.home / ".keys").symlink_to("real-keys")
        (self.home / "notes").write_text("notes")
        (self.ws / ".env").write_text("SECRET")

    @property
    def bounds(self) -> Bounds:
        return Bounds(
            profile="workspace-write",
            roots=(self.ws,),
            home=self.home,
            masked=(
                *(self.home / name for name in (".ssh", ".netrc", ".keys", ".aws", ".config/gh")),
                self.ws / ".env",
            ),
            readable_again=(self.home / ".ssh/known_hosts",),
            writable=(self.granted,),
            protected=(".agentcli", ".vscode", ".mcp.json"),
        )

    def listen(self) -> dict[str, Any]:
        """Start everything that a probe could reach: the places, for the probes."""
        tcp = socket.create_server(("127.0.0.1", 0))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        abstract = f"agentcli-test-{os.getpid()}-{id(self)}"
        self._accept("tcp", tcp)
        self._answer("udp", udp)
        tmp_socket = self.tmp_folder / "server.sock"
        for name, address in (
            ("home", str(self.home / "agent.sock")),
            ("tmp", str(tmp_socket)),
            ("abstract", f"\0{abstract}"),
        ):
            server = socket.socket(socket.AF_UNIX)
            server.bind(address)
            server.listen()
            if not address.startswith("\0"):
                Path(address).chmod(0o777)
            self._accept(name, server)
        return {
            "ws": str(self.ws),
            "home": str(self.home),
            "outside": str(self.outside),
            "granted": str(self.granted),
            "victim": self.victim.pid,
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "tmp_socket": str(tmp_socket),
            "tmp_folder": str(self.tmp_folder),
            "abstract": abstract,
        }

    def _accept(self, name: str, server: socket.socket) -> None:
        self._open.append(server)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()
                    self.packets.append(name)

        threading.Thread(target=accept, daemon=True).start()

    def _answer(self, name: str, server: socket.socket) -> None:
        self._open.append(server)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    _, sender = server.recvfrom(100)
                    self.packets.append(name)
                    server.sendto(b"answer", sender)

        threading.Thread(target=answer, daemon=True).start()


def make_repository(folder: Path) -> None:
    """With a submodule, a nested repository, hooks that the configuration names, and an existing protected folder."""
    git(folder, "init", "-q")
    git(folder, "config", "core.hooksPath", "tools/hooks")
    for name in ("a.txt", "tools/hooks/pre-push", ".vscode/tasks.json", ".gitignore"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(".env\nvendor\n" if name == ".gitignore" else "original\n")
    nested = folder / "vendor/lib"
    nested.mkdir(parents=True)
    git(nested, "init", "-q")
    git(nested, "commit", "-q", "--allow-empty", "-m", "nested")
    git(folder, "submodule", "--quiet", "add", "--name", "libs/sub", str(nested), "sub")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")


def picture(folder: Path) -> dict[str, tuple[str, int, int, bytes]]:
    """What a folder holds: kinds and modes, times, contents, attributes, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        at = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(at.st_mode) else b""
        attributes = "".join(os.listxattr(path, follow_symlinks=False))
        found[str(path.relative_to(folder))] = (
            stat.filemode(at.st_mode),
            at.st_mtime_ns,
            at.st_nlink,
            content,
            attributes,
        )
    return found


def alive(seconds: str) -> bool:
    """Whether a `sleep` of just so many seconds runs anywhere."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if (folder / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                    return True
    return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
