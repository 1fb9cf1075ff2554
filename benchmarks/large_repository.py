"""The first command in a repository of 150,000 tracked files, and the second: seconds, and what the state folder takes.

The floor is `git status` in the same run. The command runs in the workspace itself, and changes one file, which `undo`
brings back. `large_repository.py FOLDER` keeps the repository in that folder, and uses the one that is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES, IN_FOLDER, IN_STEP = 150_000, 50, 20_000
MAX_S, MAX_MB = 5.0, 20.0
COMMAND = "echo changed > d0/s0/f0.py"


def make(folder: Path) -> None:
    """Import one commit, which git checks out: its files are in one pack."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    stream = ["commit refs/heads/main\ncommitter a <a@example.org> 1700000000 +0000\ndata 5\nfirst\n"]
    for number in range(FILES):
        text = f"# {number}\n" + f"def f{number}(value):\n    return value * {number}\n" * 20
        path = f"d{number // IN_STEP}/s{number // IN_FOLDER}/f{number}.py"
        stream.append(f"M 100644 inline {path}\ndata {len(text)}\n{text}\n")
    subprocess.run(["git", "-C", str(folder), "fast-import", "--quiet"], input="".join(stream).encode(), check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "-q", "main"], check=True)


def took_s(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}: {done.stdout.decode()}{done.stderr.decode()}")
    return time.perf_counter() - started


def megabytes(folder: Path, beside: Path) -> float:
    """What removing a folder would free, in MB: files that `beside` has a name of, too, are not counted."""
    sizes = subprocess.run(["du", "-sk", str(beside), str(folder)], capture_output=True, text=True, check=True)
    return int(sizes.stdout.splitlines()[-1].split()[0]) / 1_000


def measure(base: Path, repository: Path) -> int:
    environment = {**os.environ, "AGENTCLI_HOME": str(base / "home"), "PYTHONPATH": str(ROOT)}
    script = base / "script.jsonl"
    call = {"tool_calls": [{"name": "bash", "input": {"command": COMMAND}}]}
    script.write_text(f"{json.dumps(call)}\n{json.dumps({'text': 'Done.'})}\n")
    agentcli = [sys.executable, "-m", "agentcli"]
    prompt = [*agentcli, "-m", f"scripted/{script}", "--permission-mode", "bypassPermissions", "-p", "go"]
    git = ["git", "status", "--porcelain"]
    took_s(git, repository, environment)
    before = (repository / "d0/s0/f0.py").read_bytes()
    status_s = took_s(git, repository, environment)
    first_s = took_s(prompt, repository, environment)
    stored_mb = megabytes(base / "home", repository / ".git")
    undo_s = took_s([*agentcli, "undo", "--yes"], repository, environment)
    is_back = (repository / "d0/s0/f0.py").read_bytes() == before
    second_s = took_s(prompt, repository, environment)
    took_s([*agentcli, "undo", "--yes"], repository, environment)
    print(f"git status              {status_s:6.2f} s")
    print(f"the first command       {first_s:6.2f} s, at most {MAX_S}")
    print(f"the state folder        {stored_mb:6.1f} MB, at most {MAX_MB}")
    print(f"the second command      {second_s:6.2f} s")
    print(f"undo                    {undo_s:6.2f} s, {'the file is back' if is_back else 'the file is NOT back'}")
    return int(first_s > MAX_S or stored_mb > MAX_MB or not is_back)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        repository = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else base / "repository"
        if not repository.exists():
            make(repository)
        return measure(base, repository)


if __name__ == "__main__":
    sys.exit(main())
