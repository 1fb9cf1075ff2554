"""Commands that a model makes every day are run in a real repository: nobody is asked, and nothing is changed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentcli.infra.sandbox.dry_runs.overlays import probe_overlays
from tests.app.running import Place, call
from tests.unit.tools.test_everyday_commands import everyday_commands

pytestmark = pytest.mark.slow

NEEDED = ("bwrap", "git", "node", "npm", "gcc", "g++", "make", "jq")
FILES = {
    "src/app/__init__.py": '__version__ = "1.2"\n\n\ndef parse(text):\n    return text.split("+")\n',
    "src/app/views.py": "\n\n".join(f"def shown_{number}():\n    return {number}\n" for number in range(50)),
    "src/app/main.py": "def parse_all():\n    return []\n",
    "src/tool.py": "def one():\n    return 1\n",
    "src/config.py": "DEBUG = True\n",
    "src/index.js": "export const one = 1;\n",
    "src/main.c": "int main(void) { return 0; }\n",
    "src/main.cpp": "int main() { return 0; }\n",
    "src/main.rs": "fn main() {}\n",
    "src/types.ts": "export type One = 1;\n",
    "tests/test_config.py": 'import app\n\n\ndef test_parse():\n    assert app.parse("1+1") == ["1", "1"]\n',
    "tests/test_slow.py": "def test_nothing():\n    pass\n",
    "conftest.py": 'import pathlib\nimport sys\n\nsys.path.insert(0, str(pathlib.Path(__file__).parent / "src"))\n',
    "test/one.test.js": "const test = require('node:test');\ntest('one', () => {});\n",
    "scripts/report.py": 'print("all well")\n',
    "scripts/check-links.mjs": "console.log('no dead links');\n",
    "scripts/deploy.sh": "#!/bin/sh\necho deployed\n",
    "package.json": '{"name": "app", "version": "1.0.0", "dependencies": {},'
    ' "scripts": {"test": "node --test test/", "lint": "node --check src/index.js", "typecheck": "node -v"}}\n',
    "Makefile": "all: app\n\ntest: all\n\t./app\n\napp: src/main.c\n\tcc -o app src/main.c\n",
    "README.md": "# App\n",
    "docs/guide.md": "# Guide\n\n## Setup\n",
    "data.csv": "a,1\nb,2\n",
    "data/results.csv": "a,b,1\nc,d,2\n",
    "a.txt": "1\n2\n",
    "b.txt": "2\n3\n",
    "files.txt": "a.txt\nmissing.txt\n",
}
# Of the commands that only read those for which the tools and the files are there.
RUN = """
python3 -c 'import json; d = json.load(open("package.json")); print(d["scripts"])'
npm test
npm test 2>&1 | tail -20
npm run lint
set -e; npm run lint; npm test
npm run typecheck 2>&1 | head -40
node -v && npm -v
node -e "console.log(require('./package.json').dependencies)"
node --check src/index.js
node --test test/
node scripts/check-links.mjs | tail -n 5
npm ls --depth=0
npm pkg get scripts
cat package.json | jq '.scripts'
for f in src/*.js; do node --check "$f" || echo "BAD $f"; done
gcc --version | head -1
gcc -Wall -Wextra -fsyntax-only src/*.c
g++ -std=c++20 -fsyntax-only -Iinclude src/main.cpp 2>&1 | head -20
make -n
make -n test | head
find . -name "*.py" -not -path "./.venv/*" | head -50
sed -n '120,180p' src/app/views.py
for f in $(git diff --name-only); do echo "== $f"; wc -l "$f"; done
for f in src/*.py; do echo "$f: $(grep -c '^def ' $f)"; done
while read -r f; do [ -f "$f" ] || echo "missing $f"; done < files.txt
diff <(sort a.txt) <(sort b.txt)
awk '/^## /{print NR": "$0}' docs/guide.md
git status
git status --short && git diff --stat
git log -p --follow -3 -- src/app/models.py
git show --stat HEAD
git log --since="2 weeks ago" --author="$(git config user.name)" --oneline
""".strip().splitlines()
# These run in the environment of the tests.
PYTHON = """
python -m pytest tests/ -x -q
pytest --collect-only -q | wc -l
python -m pytest -q > /dev/null 2>&1; echo "exit code $?"
out=$(python -m pytest -q 2>&1); echo "$out" | tail -3
timeout 60 python -m pytest tests/test_slow.py -q
ruff check .
ruff format --check . && ruff check .
ruff check src tests --output-format=concise | head -20
mypy src/
PYTHONPATH=src python -m unittest discover -s tests -v
python -m py_compile src/app/main.py && echo OK
python scripts/report.py --dry-run | head
python --version && pip --version
pip freeze | sort | head -50
""".strip().splitlines()
SAID = {
    "python -m pytest tests/ -x -q": "2 passed",
    'python -m pytest -q > /dev/null 2>&1; echo "exit code $?"': "exit code 0",
    "ruff check .": "All checks passed!",
    "python -m py_compile src/app/main.py && echo OK": "OK",
    "npm test": "pass 1",
    "node scripts/check-links.mjs | tail -n 5": "no dead links",
    "make -n": "cc -o app src/main.c",
    "git status --short && git diff --stat": " M README.md",
}


def are_visible() -> bool:
    """True if commands see the Python of the tests: each has a /tmp of its own, and a home of others is hidden."""
    return not sys.prefix.startswith("/tmp/") and os.path.realpath(sys.executable).startswith(("/usr/", "/opt/"))


def contents(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder: modes, contents and times of files, links. Not what agentcli itself keeps."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(("home/", "script-")) or name == "home":
            continue
        info = path.lstat()
        what = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        when = 0 if path.is_dir() else info.st_mtime_ns  # the sandbox makes mount points in folders for a moment
        found[name] = (stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode), when, what)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "probe").mkdir()
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"not here: {', '.join(missing)}")
    if why := probe_overlays([str(tmp_path)], tmp_path / "probe"):
        pytest.skip(why)
    shutil.rmtree(tmp_path / "probe")
    made = Place(tmp_path)
    (tmp_path / "person").mkdir()
    made.environment["HOME"] = str(tmp_path / "person")
    made.environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for name, text in FILES.items():
        (made.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (made.folder / name).write_text(text)
    settings = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    for words in (["init", "-q"], ["add", "-A"], [*settings, "commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=made.folder, check=True, env=made.environment)
    (made.folder / "README.md").write_text("# The app\n")
    return made


def test_commands_that_only_read_put_no_question_and_change_nothing(place: Place) -> None:
    reads = {command for does, command in everyday_commands() if does == "reads"}
    assert [command for command in (*RUN, *PYTHON) if command not in reads] == []
    run = [*RUN, *PYTHON] if are_visible() else RUN
    before = contents(place.folder.parent)
    said: dict[str, str] = {}
    for start in range(0, len(run), 10):
        commands = run[start : start + 10]
        replies = [{"tool_calls": [call("bash", command=command)]} for command in commands]
        ran = place.run("-m", place.script(*replies, {"text": "Done."}), "-p", "go", "--output-format", "stream-json")
        assert ran.result["permission_denials"] == []
        assert ran.code == 0
        blocks = [block for line in ran.of("user") for block in line["message"]["content"]]
        results = [block for block in blocks if block["type"] == "tool_result"]
        said |= {command: str(result.get("content", "")) for command, result in zip(commands, results, strict=True)}
    assert contents(place.folder.parent) == before
    assert list((place.home / "state/tries").iterdir()) == []
    assert [command for command, part in SAID.items() if part not in said.get(command, part)] == []
    assert [command for command, text in said.items() if "not found" in text or "denied" in text] == []
