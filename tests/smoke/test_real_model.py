"""The main job with a real model: by a key in the environment, else the embedded one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentcli.cli.subcommands.demo import make_sample
from agentcli.models.choice import EMBEDDED, KEYED_MODELS

pytestmark = pytest.mark.smoke


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The model's name, and the environment it needs."""
    env = {**os.environ, "AGENTCLI_HOME": str(tmp_path / "home")}
    if keyed := next((name for variable, name in KEYED_MODELS if os.environ.get(variable)), ""):
        return keyed, env
    weights = os.environ.get("AGENTCLI_TEST_GGUF")
    if not weights or not Path(weights).is_file():
        pytest.skip("no key, and AGENTCLI_TEST_GGUF names no weights (agentcli local install fetches them)")
    return EMBEDDED, {**env, "AGENTCLI_LOCAL_MODEL": weights}


def ask(
    prompt: str, model: tuple[str, dict[str, str]], repository: Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    name, env = model
    command = [sys.executable, "-m", "agentcli", "-p", prompt, "-m", name, *flags]
    return subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_it_answers_a_question_about_a_repository(model: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    make_sample(tmp_path / "shop")
    run = ask("What does price.py do?", model, tmp_path / "shop")
    assert run.returncode == 0, run.stderr
    assert "tax" in run.stdout.lower()


def test_it_finds_out_through_a_tool(model: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    repository = tmp_path / "project"
    repository.mkdir()
    (repository / "deploy.txt").write_text("Deploy on Fridays.\nThe hint is: purple elephant.\n")
    run = ask("Search the files for the word 'hint' and tell me what the hint is.", model, repository)
    assert run.returncode == 0, run.stderr
    assert "elephant" in run.stdout.lower()


def test_it_makes_a_small_change(model: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    repository = tmp_path / "shop"
    make_sample(repository)
    prompt = "with_tax in price.py subtracts the tax from the net amount. It must add it. Fix it."
    run = ask(prompt, model, repository, "--permission-mode", "acceptEdits")
    assert run.returncode == 0, run.stderr
    assert "net + net * TAX" in (repository / "price.py").read_text()
