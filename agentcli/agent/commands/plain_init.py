"""Writes an AGENTS.md by rules, without a model: what the files of a repository say about its commands and layout."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentcli.errors import UserError
from agentcli.safety.paths.secret import is_secret
from agentcli.settings.files import is_file, read_small_file, replace_file

FILE = "AGENTS.md"
HEADINGS = ("Set up", "Build", "Check", "Test", "One test", "Run")
MOST_FILES = 20_000  # looked at
_MOST_LINES = 12  # of a list
_SKIPPED = frozenset("node_modules __pycache__ venv env target dist build out vendor coverage site-packages".split())
_LANGUAGES = {
    extension: name
    for name, extensions in {
        "Python": "py pyi", "TypeScript": "ts tsx mts", "JavaScript": "js jsx mjs cjs", "Go": "go", "Rust": "rs",
        "Java": "java", "Kotlin": "kt kts", "C": "c h", "C++": "cc cpp cxx hpp hh", "C#": "cs", "Ruby": "rb",
        "PHP": "php", "Swift": "swift", "Elixir": "ex exs", "Scala": "scala", "Shell": "sh bash", "Lua": "lua",
        "Haskell": "hs", "Zig": "zig", "Dart": "dart", "Vue": "vue", "Svelte": "svelte", "SQL": "sql", "R": "r R",
        "Terraform": "tf", "HTML": "html", "CSS": "css scss", "Markdown": "md",
    }.items()
    for extension in extensions.split()
}  # fmt: skip
_IS_PROSE = ("Markdown", "HTML", "CSS")

Commands = Iterator[tuple[str, str]]  # a heading, and a command under it


async def write_agents_md(root: Path, *, replace: bool) -> str:
    """Write it, and say where. Raises `UserError`, also where one is there and is not to be replaced."""
    file = root / FILE
    try:
        text = await asyncio.to_thread(agents_md, root)
        if replace:
            await asyncio.to_thread(replace_file, file, text.encode(), mode=0o644)
        else:
            import aiofiles

            async with aiofiles.open(file, "x", encoding="utf-8") as out:
                await out.write(text)
    except FileExistsError as error:
        raise UserError(f"{file} is there already: /init plain replace puts a new one in its place.") from error
    except OSError as error:
        raise UserError(f"{file} could not be written: {error.strerror}.") from error
    return f"Written to {file}, without a model. Look through it: new sessions read it."


def agents_md(root: Path) -> str:
    """The text of an AGENTS.md for the project at `root`; no command in it was run."""
    repository = Repository(root)
    commands: dict[str, list[str]] = {heading: [] for heading in HEADINGS}
    for read in (_python, _node, _rust, _go, _others, _targets):
        for heading, command in read(repository):
            if command not in commands[heading]:
                commands[heading].append(command)
    name, about = _name_and_description(repository)
    parts = [f"# {name}"]
    parts += [about] if about else []
    if languages := repository.languages():
        parts.append(f"Written in {languages}.")
    rows = [f"- {heading}: {', '.join(f'`{one}`' for one in found)}" for heading, found in commands.items() if found]
    parts += ["## Commands", "\n".join(rows)] if rows else []
    parts += ["## Layout", "\n".join(layout)] if (layout := repository.layout()) else []
    if checks := list(dict.fromkeys(_ci(repository)))[:_MOST_LINES]:
        parts += ["## What CI runs", "\n".join(f"- `{check}`" for check in checks)]
    if older := next((name for name in ("CLAUDE.md", "GEMINI.md") if name in repository.names), ""):
        parts.append(f"More is said in @{older}")
    parts.append("<!-- Made from the repository's files, without trying the commands. Add what only people know. -->")
    return "\n\n".join(parts) + "\n"


class Repository:
    """The files of a project, read once. What leads out of it, or may hold secrets, is not read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = set(os.listdir(root))  # noqa: PTH208  # names are all that is needed
        self.files = list(self._walk())

    def _walk(self) -> Iterator[str]:
        count = 0
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
            for name in sorted(files):
                yield os.path.relpath(os.path.join(folder, name), self.root)  # noqa: PTH118  # as texts, for 20,000 files
                count += 1
                if count == MOST_FILES:
                    return

    def text(self, name: str) -> str:
        """A file's text; empty where it is not there or cannot be read."""
        file = self.root / name
        try:
            real = file.resolve(strict=True)
            if not real.is_relative_to(self.root.resolve()) or is_secret(real, None):
                return ""
            return read_small_file(file, really=real).decode("utf-8-sig", "replace")
        except (OSError, RuntimeError):
            return ""

    def table(self, name: str) -> dict[str, Any]:
        """What a TOML, JSON or YAML file holds; empty where it is broken."""
        from yaml import YAMLError

        try:
            match name.rpartition(".")[2]:
                case "toml":
                    found: Any = tomllib.loads(self.text(name))
                case "json":
                    found = json.loads(self.text(name) or "{}")
                case _:
                    from yaml import safe_load

                    found = safe_load(self.text(name))
        except (ValueError, RecursionError, YAMLError):
            return {}
        return found if isinstance(found, dict) else {}

    def first(self, pattern: str) -> str:
        """The first file whose path the pattern fits; empty where there is none."""
        fits = re.compile(pattern).search
        return next((file for file in self.files if fits(file) and re.fullmatch(r"[\w./@-]+", file)), "")

    def languages(self) -> str:
        counted = Counter(filter(None, map(_language, self.files)))
        code = [pair for pair in counted.most_common() if pair[0] not in _IS_PROSE]
        return ", ".join(f"{name} ({_files(count)})" for name, count in (code or counted.most_common())[:5])

    def layout(self) -> list[str]:
        inside: dict[str, list[str]] = {}
        for file in self.files:
            if "/" in file:
                inside.setdefault(file.partition("/")[0], []).append(file)
        rows = []
        for folder, files in inside.items():
            main = Counter(filter(None, map(_language, files))).most_common(1)
            rows.append(f"- `{_clean(folder)}/`: " + (f"{main[0][0]}, " if main else "") + _files(len(files)))
        more = len(rows) - _MOST_LINES
        return rows[:_MOST_LINES] + ([f"- and {more} more folders"] if more > 0 else [])


def _language(file: str) -> str:
    return _LANGUAGES.get(file.rpartition(".")[2], "")


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _clean(text: object, most: int = 300) -> str:
    """A line of plain text: nothing in it can close what it stands in."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e`]|<!--|-->", " ", text if isinstance(text, str) else "")
    line = line.encode(errors="replace").decode()  # a file's name may be no UTF-8
    return " ".join(line.split())[:most]


def _dict(found: Any, *keys: str) -> dict[str, Any]:
    """The table below these keys; empty where there is none."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _name_and_description(repository: Repository) -> tuple[str, str]:
    places = (
        _dict(repository.table("pyproject.toml"), "project"),
        _dict(repository.table("pyproject.toml"), "tool", "poetry"),
        repository.table("package.json"),
        _dict(repository.table("Cargo.toml"), "package"),
        repository.table("composer.json"),
    )
    name = next((_clean(place["name"], 80) for place in places if place.get("name")), "") or _clean(
        repository.root.name
    )
    about = next((_clean(place["description"]) for place in places if place.get("description")), "")
    return name, about or _first_paragraph(repository.text("README.md"))


def _first_paragraph(readme: str) -> str:
    """The first one that is prose: no heading, badge, table, list or HTML."""
    for paragraph in re.split(r"\n\s*\n", readme[:20_000]):
        if re.match(r"\s*\w", paragraph) and not re.match(r".+\n[=-]{3,}\s*$", paragraph.strip()):
            return _clean(paragraph)
    return ""


def _python_setup(names: set[str], project: dict[str, Any], lists: list[str]) -> tuple[str, list[str]]:
    """What stands before a tool's name to run it, and the commands that install what it needs."""
    for sign, setup, lead in (
        ("uv.lock" in names, "uv sync", "uv run "),
        ("poetry.lock" in names or "poetry" in _dict(project, "tool"), "poetry install", "poetry run "),
        ("pdm.lock" in names, "pdm install", "pdm run "),
        ("Pipfile" in names, "pipenv install --dev", "pipenv run "),
    ):
        if sign:
            return lead, [setup]
    setups = [f"pip install -r {name}" for name in lists]
    if "setup.py" in names or "project" in project:
        optional = _dict(project, "project", "optional-dependencies")
        extras = ",".join(name for name in optional if name in ("dev", "test", "tests"))
        setups.append(f"pip install -e '.[{extras}]'" if extras else "pip install -e .")
    return "", setups


_PYTHON = {"pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "tox.ini", "noxfile.py", "manage.py"}


def _python(repository: Repository) -> Commands:
    names, project = repository.names, repository.table("pyproject.toml")
    lists = sorted(name for name in names if re.fullmatch(r"[\w-]*requirements[\w-]*\.txt", name))
    if not names & _PYTHON and not lists:
        return
    tools = _dict(project, "tool")
    lead, setups = _python_setup(names, project, lists)
    for setup in setups:
        yield "Set up", setup
    wanted = " ".join(
        (
            *map(repository.text, (*lists, "setup.cfg", "tox.ini", "Pipfile", "noxfile.py")),
            repository.text("pyproject.toml"),
        )
    )

    def uses(tool: str, *signs: str) -> bool:
        return tool in tools or bool(names & set(signs)) or bool(re.search(rf"(?<![\w-]){tool}(?![\w-])", wanted))

    if uses("ruff", "ruff.toml", ".ruff.toml"):
        yield "Check", f"{lead}ruff check ."
        yield "Check", f"{lead}ruff format ."
    for tool, command, *signs in (
        ("black", "black ."), ("isort", "isort ."), ("flake8", "flake8", ".flake8"),
        ("mypy", "mypy" if _dict(tools, "mypy").keys() & {"files", "packages"} else "mypy .", "mypy.ini"),
        ("pyright", "pyright", "pyrightconfig.json"),
    ):  # fmt: skip
        if uses(tool, *signs):
            yield "Check", f"{lead}{command}"
    test = repository.first(r"(^|/)test_\w+\.py$|_test\.py$")
    if uses("pytest", "pytest.ini", "conftest.py"):
        yield "Test", f"{lead}pytest"
        yield "One test", f"{lead}pytest {test or 'tests/test_x.py'}::test_name"
    elif "manage.py" in names:
        yield "Test", f"{lead}python manage.py test"
    elif test:
        yield "Test", f"{lead}python -m unittest discover"
    for file, command in (("tox.ini", "tox"), ("noxfile.py", "nox")):
        if file in names:
            yield "Test", command
    for script in list(_dict(project, "project", "scripts"))[:3]:
        if re.fullmatch(r"[\w.-]+", script):
            yield "Run", f"{lead}{script}"


_BY_NAME = (
    ("Set up", "install setup bootstrap deps init"),
    ("Build", "build all compile bundle"),
    ("Check", "lint check format fmt typecheck type-check types tsc vet style"),
    ("Test", "test tests unit test:unit test-unit e2e test:e2e integration test:integration test-integration"),
    ("Run", "run dev start serve"),
)


def _named(names: Iterable[str], command: str) -> Commands:
    """The targets or scripts whose names say what they are for."""
    there = list(dict.fromkeys(names))
    for heading, known in _BY_NAME:
        yield from ((heading, command.format(name)) for name in known.split() if name in there)


def _node(repository: Repository) -> Commands:
    if "package.json" not in repository.names:
        return
    package, names = repository.table("package.json"), repository.names
    manager = _clean(package.get("packageManager")).partition("@")[0]
    if manager not in ("npm", "pnpm", "yarn", "bun"):
        locks = (("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun"), ("bun.lockb", "bun"))
        manager = next((name for lock, name in locks if lock in names), "npm")
    yield "Set up", "npm ci" if manager == "npm" and "package-lock.json" in names else f"{manager} install"
    scripts = _dict(package, "scripts")
    for heading, command in _named(
        (name for name in scripts if name not in ("install", "init")), f"{manager} run {{}}"
    ):
        yield heading, "npm test" if command == "npm run test" else command
    test = repository.first(r"\.(test|spec)\.[cm]?[jt]sx?$")
    used = {**_dict(package, "dependencies"), **_dict(package, "devDependencies")}
    runner = {"npm": "npx", "pnpm": "pnpm exec", "yarn": "yarn", "bun": "bunx"}[manager]
    for tool, command in (("vitest", "vitest run"), ("jest", "jest"), ("mocha", "mocha")):
        if tool in used and test:
            yield "One test", f"{runner} {command} {test}"


def _rust(repository: Repository) -> Commands:
    if "Cargo.toml" in repository.names:
        every = " --workspace" if "workspace" in repository.table("Cargo.toml") else ""
        yield "Build", f"cargo build{every}"
        yield "Check", f"cargo clippy{every} --all-targets"
        yield "Check", "cargo fmt"
        yield "Test", f"cargo test{every}"
        yield "One test", "cargo test X"


def _go(repository: Repository) -> Commands:
    if "go.mod" in repository.names:
        yield "Build", "go build ./..."
        yield "Check", "go vet ./..."
        if any(name.startswith(".golangci.") for name in repository.names):
            yield "Check", "golangci-lint run"
        yield "Test", "go test ./..."
        yield "One test", "go test -run TestName ./package"


# Names of files at the root, and the commands that such a file stands for.
_SIGNS: dict[str, dict[str, str]] = {
    r"pom\.xml": {"Build": "{mvn} package", "Test": "{mvn} test", "One test": "{mvn} test -Dtest=Class#method"},
    r"build\.gradle(\.kts)?": {"Build": "{gradle} build", "Test": "{gradle} test"},
    r"Gemfile": {"Set up": "bundle install"},
    r"\.rspec": {"Test": "bundle exec rspec", "One test": "bundle exec rspec spec/x_spec.rb:LINE"},
    r"\.rubocop\.yml": {"Check": "bundle exec rubocop"},
    r"composer\.json": {"Set up": "composer install"},
    r"phpunit\.xml(\.dist)?": {"Test": "vendor/bin/phpunit", "One test": "vendor/bin/phpunit --filter X"},
    r"mix\.exs": {"Set up": "mix deps.get", "Check": "mix format", "Test": "mix test", "One test": "mix test X:1"},
    r"CMakeLists\.txt": {"Build": "cmake -B build && cmake --build build", "Test": "ctest --test-dir build"},
    r".*\.(slnx?|csproj)": {"Build": "dotnet build", "Test": "dotnet test", "One test": "dotnet test --filter X"},
    r"deno\.jsonc?": {"Check": "deno lint", "Test": "deno test"},
    r"Package\.swift": {"Build": "swift build", "Test": "swift test", "One test": "swift test --filter X"},
    r"pubspec\.yaml": {"Set up": "dart pub get", "Check": "dart analyze", "Test": "dart test"},
    r"\.pre-commit-config\.yaml": {"Check": "pre-commit run --all-files"},
}  # fmt: skip


def _others(repository: Repository) -> Commands:
    wrappers = {"mvn": ("mvnw", "./mvnw"), "gradle": ("gradlew", "./gradlew")}
    run = {name: own if file in repository.names else name for name, (file, own) in wrappers.items()}
    for sign, commands in _SIGNS.items():
        if any(re.fullmatch(sign, name) for name in repository.names):
            yield from ((heading, command.format(**run)) for heading, command in commands.items())


def _targets(repository: Repository) -> Commands:
    """Of Makefiles, justfiles and Taskfiles."""
    for name in ("Makefile", "makefile", "GNUmakefile"):
        if name in repository.names:
            yield from _named(re.findall(r"^([A-Za-z][\w-]*)\s*:(?!=)", repository.text(name), re.MULTILINE), "make {}")
            break
    for name in ("justfile", "Justfile", ".justfile"):
        found = re.findall(r"^@?([A-Za-z][\w-]*)[^:=\n]*:(?!=)", repository.text(name), re.MULTILINE)
        yield from _named(found, "just {}")
    for name in ("Taskfile.yml", "Taskfile.yaml"):
        if name in repository.names:
            yield from _named(map(str, _dict(repository.table(name), "tasks")), "task {}")


_CHECKS = re.compile(r"\b(?:test|tests|lint|check|build|fmt|format|clippy|vet|mypy|ruff|eslint|tsc|pytest|tox|nox)\b")
_NOT_SHOWN = re.compile(r"[`$=|;&<>\\]|\b(?:echo|sudo|curl|export|cd)\b|^\s*#")


def _ci(repository: Repository) -> Iterator[str]:
    """The lines that build and check, as far as they can be run as they stand."""
    folder = repository.root / ".github/workflows"
    flows = sorted(file.name for file in folder.glob("*.y*ml") if is_file(file)) if folder.is_dir() else []
    scripts: list[Any] = []
    for name in flows[:20]:
        for job in _dict(repository.table(f".github/workflows/{name}"), "jobs").values():
            steps = job.get("steps") if isinstance(job, dict) else None
            scripts += [step.get("run") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    if ".gitlab-ci.yml" in repository.names:
        for job in repository.table(".gitlab-ci.yml").values():
            script = job.get("script") if isinstance(job, dict) else None
            scripts += script if isinstance(script, list) else [script]
    for script in scripts:
        for line in str(script or "").splitlines():
            if _CHECKS.search(line) and not _NOT_SHOWN.search(line) and len(line.strip()) <= 120:
                yield _clean(line)
