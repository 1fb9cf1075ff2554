"""`/init plain`: an AGENTS.md made by rules, with a model or without one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.app.running import Place

pytestmark = pytest.mark.slow  # each test starts the program


def write(place: Place, files: dict[str, str]) -> None:
    for name, text in files.items():
        (place.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (place.folder / name).write_text(text)


def made(place: Place, files: dict[str, str]) -> str:
    """The AGENTS.md of a project with these files, where no model is set up."""
    write(place, files)
    ran = place.run("-p", "/init")
    assert (ran.code, ran.err) == (0, ""), ran
    file = place.folder / "AGENTS.md"
    assert ran.out == f"Written to {file}, without a model. Look through it: new sessions read it.\n"
    return file.read_text()


def test_a_python_project(place: Place) -> None:
    tools = '[tool.ruff]\n[tool.pytest]\n[tool.mypy]\nfiles = ["tea"]\n'
    project = f'[project]\nname = "tea"\ndescription = "Brews tea."\n{tools}'
    steps = "- uses: x\n      - run: |\n          uv run pytest -q\n          echo $TOKEN test\n"
    flow = f"jobs:\n  a:\n    steps:\n      {steps}"
    text = made(
        place,
        {
            "pyproject.toml": project, "uv.lock": "", "tea/pot.py": "", "tests/test_pot.py": "", "README.md": "# Tea\n",
            ".github/workflows/ci.yml": flow, "node_modules/x/y.js": "",
        },
    )  # fmt: skip
    assert text.startswith("# tea\n\nBrews tea.\n\nWritten in Python (2 files).\n\n## Commands\n")
    for line in (
        "- Set up: `uv sync`",
        "- Check: `uv run ruff check .`, `uv run ruff format .`, `uv run mypy`",
        "- Test: `uv run pytest`",
        "- One test: `uv run pytest tests/test_pot.py::test_name`",
        "- `tea/`: Python, 1 file",
        "## What CI runs\n\n- `uv run pytest -q`\n",
    ):
        assert line in text
    assert "TOKEN" not in text
    assert "node_modules" not in text


@pytest.mark.parametrize(
    ("files", "lines"),
    [
        (
            {
                "package.json": json.dumps(
                    {"scripts": {"test": "vitest", "lint": "x", "build": "x"}, "devDependencies": {"vitest": "1"}}
                ),
                "pnpm-lock.yaml": "", "src/a.test.ts": "",
            },
            ["Set up: `pnpm install`", "Build: `pnpm run build`", "Check: `pnpm run lint`", "Test: `pnpm run test`",
             "One test: `pnpm exec vitest run src/a.test.ts`"],
        ),
        ({"Cargo.toml": '[package]\nname = "x"\n'}, ["Build: `cargo build`", "Test: `cargo test`"]),
        ({"go.mod": "module x\n"}, ["Check: `go vet ./...`", "Test: `go test ./...`"]),
        ({"Makefile": "CC := gcc\nall: x\ntest:\n\t./t\n.PHONY: test\n"}, ["Build: `make all`", "Test: `make test`"]),
        ({"pom.xml": "", "mvnw": ""}, ["Test: `./mvnw test`"]),
        ({"requirements.txt": "pytest\n", "test_a.py": ""}, ["Set up: `pip install -r requirements.txt`"]),
    ],
)  # fmt: skip
def test_the_commands_are_those_of_the_build_files(place: Place, files: dict[str, str], lines: list[str]) -> None:
    text = made(place, files)
    for line in lines:
        assert f"- {line}\n" in text


def test_what_is_broken_or_leads_elsewhere_is_passed_over(place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("The password of the bank.")
    (place.folder / "README.md").symlink_to(tmp_path / "secret")
    os.mkfifo(place.folder / "Makefile")
    odd = {
        "pyproject.toml": "[",
        "package.json": '{"scripts": [1], "description": "a `b` --> c"}',
        "Cargo.toml": "x" * 2_000_000,
    }
    text = made(place, {**odd, ".github/workflows/a.yml": "jobs: [1]", ".gitlab-ci.yml": "{", "CLAUDE.md": "Be kind."})
    assert "password" not in text
    assert "a b c" in text
    assert "More is said in @CLAUDE.md" in text


def test_a_file_that_is_there_is_only_replaced_by_a_yes(place: Place) -> None:
    write(place, {"AGENTS.md": "Ours.\n", "go.mod": "module x\n"})
    for model in ((), ("-m", place.script())):
        ran = place.run(*model, "-p", "/init plain")
        assert ran.code == 1
        assert "is there already: /init plain replace" in ran.err
        assert (place.folder / "AGENTS.md").read_text() == "Ours.\n"
    assert place.run("-m", place.script(), "-p", "/init plain replace").code == 0
    assert "go test" in (place.folder / "AGENTS.md").read_text()
    assert (place.folder / "AGENTS.md").stat().st_mode & 0o777 == 0o644


def test_with_a_model_it_is_the_model_that_is_asked(place: Place) -> None:
    ran = place.run("-m", place.script({"text": "I looked."}), "-p", "/init")
    assert (ran.code, ran.out) == (0, "I looked.\n")
    assert not (place.folder / "AGENTS.md").exists()
    assert place.run("-m", place.script(), "-p", "/init nonsense").code == 2


def test_names_that_are_no_text_and_fields_of_a_wrong_kind_are_left_out(place: Place) -> None:
    (place.folder / os.fsdecode(b"sr\xffc")).mkdir(parents=True)
    (place.folder / os.fsdecode(b"sr\xffc") / "a.py").touch()
    scripts = '[project.scripts]\n"a b; rm x" = "a:b"\nbrew = "tea:brew"\n'
    text = made(place, {"pyproject.toml": f'[project]\nname = "tea"\ndescription = {{ a = 1 }}\n{scripts}'})
    assert "- `sr?c/`: Python, 1 file" in text
    assert "- Run: `brew`" in text
    assert "{" not in text
