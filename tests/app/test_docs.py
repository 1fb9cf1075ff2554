"""The documents say what the program does."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from starlette.routing import Route

from agentcli.cli.options import FLAGS, make_main_parser
from agentcli.cli.subcommands import COMMANDS, load_command
from agentcli.cli.subcommands.doctor import CHECKS
from agentcli.frontends.http.routes import Routes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "page"), [("settings", "settings"), ("library", "library-reference")])
def test_a_page_that_is_written_by_a_script_is_what_the_program_is(name: str, page: str) -> None:
    assert (ROOT / f"docs/{page}.md").read_text("utf-8") == _script(name).page()


def test_the_tables_that_the_program_reads_are_those_that_people_write() -> None:
    tables = _script("tables").tables()
    assert len(tables) >= 12
    assert [file.name for file, text in tables.items() if file.read_text("utf-8") != text] == []


def test_the_description_of_the_server_is_up_to_date_and_has_every_route() -> None:
    script = _script("openapi")
    assert script.FILE.read_text("utf-8") == script.text()
    routes = Routes(None, cwd=ROOT).application(on_ready=lambda: None).routes
    named = {
        (route.path, method)
        for route in routes
        if isinstance(route, Route) and hasattr(route.endpoint, "__self__")  # the others serve files
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert named == {(operation.path, operation.method) for operation in script.OPERATIONS}


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"make_{name}", ROOT / f"docs/make_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.full
@pytest.mark.slow
def test_the_programs_of_the_library_s_page_pass_a_strict_type_checker(tmp_path: Path) -> None:
    for page in ("docs/library.md", "docs/library-web.md", "docs/library-extending.md", "README.md"):
        for number, program in enumerate(
            re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
        ):
            (tmp_path / f"{Path(page).stem.lower().replace('-', '_')}_{number}.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache", *tmp_path.glob("*.py")],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout


def test_the_page_on_doctor_names_every_check() -> None:
    text = (ROOT / "docs/doctor.md").read_text("utf-8")
    assert [name for name in CHECKS if f"`{name}`" not in text] == []


def test_every_flag_in_the_readme_exists() -> None:
    others = {"--help", "--uninstall", "--extras", "--no-deps", "--compile-bytecode"}  # of install.sh, pip and uv
    known = {name for names, _ in FLAGS for name in names} | others
    assert not set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / "README.md").read_text("utf-8"))) - known


def test_help_names_every_command_and_flag() -> None:
    text = make_main_parser(COMMANDS).format_help()
    assert all(name in text for name in COMMANDS)
    assert all(name in text for names, _ in FLAGS for name in names)


def test_every_command_runs() -> None:
    for name in COMMANDS:
        command = load_command(name)
        assert isinstance(command, typer.Typer) or callable(command.run)


def test_files_named_in_the_documents_exist() -> None:
    pages = [
        ROOT / "README.md",
        *(page for folder in ("docs", "examples", "benchmarks") for page in (ROOT / folder).glob("*.md")),
    ]
    for page in pages:
        text = page.read_text("utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert page.parent.joinpath(target).exists(), f"{page} links to {target}"


def test_modules_named_in_the_documents_exist() -> None:
    files = [
        f"/{file.relative_to(ROOT).as_posix()}"
        for folder in ("agentcli", "tests", "docs", "benchmarks")
        for file in (ROOT / folder).rglob("*.*")
    ]
    for page in ("architecture", "internals", "sandbox-backends", "glossary"):
        text = (ROOT / f"docs/{page}.md").read_text("utf-8")
        named = re.findall(r"`([\w./-]+\.(?:py|toml|ini))`", text)
        missing = [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
        assert [name for name in missing if not name.startswith(("pyproject", "config"))] == [], page


def test_each_convention_of_other_tools_is_shown_by_a_test() -> None:
    tests = {f"{file.stem}::{name}" for file in (ROOT / "tests").rglob("test_*.py")
             for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)}  # fmt: skip
    page = (ROOT / "docs/conventions.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ")[-1] for line in page.splitlines() if "::" in line and line.startswith("|")]
    named = {f"test_{file}::test_{name}" for row in rows for file, name in [row.split("::")]}
    assert len(rows) > 50
    assert named - tests == set()
