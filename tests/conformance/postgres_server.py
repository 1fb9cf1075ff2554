"""Starts a Postgres server in a temporary folder; where root starts it, as a user without rights."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

PASSWORD = "s3cret-p4ss"


def binaries() -> Path | None:
    """The folder of the newest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: float(file.parts[-3]))
    if found:
        return found[-1].parent
    program = shutil.which("postgres")
    return Path(program).resolve().parent if program else None


class PostgresServer:
    """Listens on 127.0.0.1; `url_for` gives a database of its own for each folder."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self._programs = programs
        self._data = folder / "data"
        self._log = folder / "log"
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        folder.chmod(0o755)
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            user = "postgres" if any(one.pw_name == "postgres" for one in pwd.getpwall()) else "nobody"
            self._as_user = ["runuser", "-u", user, "--"]
            shutil.chown(folder, user)
        (folder / "password").write_text(PASSWORD)
        arguments = ["-U", "tester", "-A", "scram-sha-256", "--pwfile", folder / "password", "-E", "UTF8", "--no-sync"]
        self._run("initdb", "-D", self._data, "--locale", "C", *arguments)
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.write(
                f"fsync = off\nlisten_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = ''\n"
                "max_connections = 200\nshared_buffers = 32MB\n"
            )
        self.start()

    def _run(self, program: str, *arguments: str | Path) -> None:
        # Not to a pipe, which the server would keep open.
        with tempfile.TemporaryFile() as output:
            command = [*self._as_user, self._programs / program, *arguments]
            ran = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
            output.seek(0)
            assert ran.returncode == 0, output.read().decode()

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self._log, "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")

    def url(self, database: str) -> str:
        return f"postgresql://tester:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def url_for(self, folder: Path) -> str:
        """Of a database that stands for the folder."""
        name = f"t{sha256(str(folder).encode()).hexdigest()[:16]}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            if not db.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                db.execute(f"CREATE DATABASE {name}")
        return self.url(name)


_running: list[PostgresServer] = []


def running() -> PostgresServer:
    """The server of this test session, started at the first use; the test is skipped where there is none."""
    if not _running:
        programs = binaries()
        if programs is None:
            assert "CI" not in os.environ, "Postgres is not installed: apt-get install postgresql"
            pytest.skip("Postgres is not installed")
        _running.append(PostgresServer(Path(tempfile.mkdtemp(prefix="agentcli-postgres-")), programs))
    return _running[0]


def end() -> None:
    for server in _running:
        server.stop()
        shutil.rmtree(server.folder)
    _running.clear()
