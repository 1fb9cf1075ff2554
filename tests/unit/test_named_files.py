"""Which files a trusted command names, however it does so."""

from __future__ import annotations

import pytest

from agentcli.extensions.mcp.tools import ServerSpec, StdioSpec
from agentcli.extensions.program_pins import named_files
from tests.rows import each_row


@each_row(
    "command, path",
    [
        ("sh scripts/lint.sh", "/r/scripts/lint.sh"),
        ("./lint", "/r/w/lint"),
        ("env A=1 timeout 5 python3 -u lint.py", "/r/w/lint.py"),
        ('"$CLAUDE_PROJECT_DIR"/a.sh', "/r/a.sh"),
        ("${CLAUDE_PROJECT_DIR:-.}/a.sh", "/r/a.sh"),
        ("$(git rev-parse --show-toplevel)/a.sh", "/r/a.sh"),
        ('sh "$(pwd)/a.sh"', "/r/w/a.sh"),
        ("cd scripts && ./a.sh", "/r/w/scripts/a.sh"),
        ("bash -c 'true; sh scripts/a.sh'", "/r/w/scripts/a.sh"),
        ("bash -c \"bash -c 'sh a.sh'\"", "/r/w/a.sh"),
        ("D=scripts; sh $D/a.sh", "/r/w/scripts/a.sh"),
        ("sh lint.txt", "/r/w/lint.txt"),
        ("sh < lint.txt", "/r/w/lint.txt"),
        ("node --require ./a.js server", "/r/w/server/index.js"),
        ("node --import=./a.mjs x", "/r/w/a.mjs"),
        ("uv run python -m tools.lint", "/r/w/tools/lint.py"),
        ("python3 -m tools", "/r/w/src/tools/__main__.py"),
        (". ./env.sh", "/r/w/env.sh"),
        ("ruff check --config=ruff.toml", "/r/w/ruff.toml"),
        ("a 'unfinished; sh x.sh", "/r/w/x.sh"),
        ('"${CLAUDE_PROJECT_DIR:?}/hooks/a.sh"', "/r/hooks/a.sh"),
        ('"${CLAUDE_PROJECT_DIR%/}/hooks/a.sh"', "/r/hooks/a.sh"),
        ('bash "$(git rev-parse --show-toplevel 2>/dev/null || pwd)/hooks/a.sh"', "/r/hooks/a.sh"),
        ('bash "$(git -C . rev-parse --show-toplevel)/hooks/a.sh"', "/r/hooks/a.sh"),
        ("bash $(dirname x)/hooks/a.sh", "/r/hooks/a.sh"),
        ("$(pwd -P)/hooks/a.sh", "/r/w/hooks/a.sh"),
        ("tee >(./hooks/a.sh)", "/r/w/hooks/a.sh"),
        ("exec > >(./hooks/a.sh) 2>&1", "/r/w/hooks/a.sh"),
        ("node $(pwd)/server", "/r/w/server/index.js"),
        ("diff <(./a.txt) x", "/r/w/a.txt"),
        ("bash hooks/a{1,2}.sh", "/r/w/hooks/a2.sh"),
        ("bash hooks/a{1..3}.sh", "/r/w/hooks/a*.sh"),
        ('for f in hooks/*.sh; do bash "$f"; done', "/r/w/hooks/*.sh"),
        ("python -um srv", "/r/w/srv.py"),
        ("python3 -umsrv", "/r/w/srv.py"),
        ("cd tools && node server.js", "/r/w/tools/server.js"),
        ("PATH=./bin:$PATH serve", "/r/w/bin/serve"),
    ],
)
def test_a_file_that_is_run_is_named(command: str, path: str) -> None:
    found = {file.path for file in named_files(command, cwd="/r/w", root="/r") if not file.is_data}
    assert path in found or path.replace("/r/", "/r/w/", 1) in found


@pytest.mark.parametrize(
    ("program", "path"),
    [
        (StdioSpec(command="node", args=("server.js",), cwd="tools"), "/r/tools/server.js"),
        (StdioSpec(command="node", args=("server.js",), cwd="${CLAUDE_PROJECT_DIR}/tools"), "/r/tools/server.js"),
        (StdioSpec(command="serve", env={"PATH": "./bin:/usr/bin"}), "/r/bin/serve"),
        (StdioSpec(command="bash", args=("-c", "x"), env={"BASH_ENV": "env.txt"}), "/r/env.txt"),
        (StdioSpec(command="node", args=("a",), env={"NODE_OPTIONS": "--require ./b.js"}), "/r/b.js"),
    ],
)
def test_what_a_server_is_started_from_is_named(program: StdioSpec, path: str) -> None:
    command = ServerSpec(name="x", transport=program).start_command
    found = named_files(command, cwd="/r", root="/r", variables=program.env)
    assert path in {file.path for file in found if not file.is_data}


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("python3 lint.py >> hooks.txt.py", "/r/hooks.txt.py"),
        ("python3 lint.py 2> err", "/r/err"),
        ("python3 server.py memory.json", "/r/memory.json"),
        ("sh lint.sh | tee last.log", "/r/last.log"),
        ("make lint", "/r/make"),
    ],
)
def test_what_is_written_or_only_read_is_not(command: str, path: str) -> None:
    assert path not in {file.path for file in named_files(command, cwd="/r", root="/r") if not file.is_data}
