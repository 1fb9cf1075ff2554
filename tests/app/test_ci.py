"""The GitHub Action, the pre-commit hook and the dev container: their steps run as their hosts would run them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.app.running import Place

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c")  # GitHub's own
REVIEW = ROOT / "integrations/agentcli-review"
PROGRAM = Path(sys.executable).with_name("agentcli")


class Runner:
    """A runner of GitHub's, as far as a composite action sees it."""

    def __init__(self, place: Place) -> None:
        self.place, self.temp = place, place.folder.parent / "runner"
        (self.temp / "agentcli/bin").mkdir(parents=True)
        for program in (PROGRAM, Path(sys.executable)):  # as the first step installs them
            (self.temp / "agentcli/bin" / ("agentcli" if program == PROGRAM else "python")).symlink_to(program)

    def run(self, step: int, env: dict[str, str] | None = None, **inputs: str) -> subprocess.CompletedProcess[str]:
        given = {name: value.get("default", "") for name, value in ACTION["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        described = ACTION["runs"]["steps"][step]
        environment = {**self.place.environment, "GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(self.temp)}
        for variable, value in described["env"].items():
            found = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)
            assert found, value
            environment[variable] = given[found[1]]
        environment |= {name: str(self.temp / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")} | (env or {})
        return subprocess.run(
            [*BASH, described["run"]],
            cwd=self.place.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs, as GitHub reads the file: each value ends with the line that its delimiter is."""
        text = (self.temp / "GITHUB_OUTPUT").read_text()
        found = re.finditer(r"(?ms)^([\w-]+)<<(\S+)\n(.*?)\n\2\n", text)
        return {one[1]: one[3] for one in found}

    @property
    def summary(self) -> str:
        return (self.temp / "GITHUB_STEP_SUMMARY").read_text()


@pytest.fixture
def runner(place: Place) -> Runner:
    return Runner(place)


def test_the_action_passes_inputs_on_and_folds_the_stream_into_outputs_and_a_summary(runner: Runner) -> None:
    looks = {"tool_calls": [{"name": "bash", "input": {"command": "cat missing"}}]}
    writes = {"tool_calls": [{"name": "file_write", "input": {"path": "a.txt", "content": "a"}}]}
    model = runner.place.script(looks, writes, {"text": "First.\nSecond."})
    ran = runner.run(1, model=model, prompt="/help is no command", allow="bash(cat *)\n\nbash(ls *)\n")
    assert ran.returncode == 0, ran.stderr
    outputs = runner.outputs
    assert (outputs["result"], outputs["exit-code"], outputs["cost-usd"]) == ("First.\nSecond.", "0", "0.0")
    assert outputs["session-id"] in runner.place.run("sessions", "list").out
    assert '- ✗ bash ` {"command": "cat missing"} `' in runner.summary
    assert "3 requests · $0.0000 · 2 calls · 1 denied" in runner.summary


def test_the_exit_code_of_a_limit_is_the_steps(runner: Runner) -> None:
    calls = [{"tool_calls": [{"name": "bash", "input": {"command": "true"}}]}] * 2
    ran = runner.run(1, model=runner.place.script(*calls), prompt="go", max_turns="1")
    assert (ran.returncode, runner.outputs["exit-code"]) == (53, "53")
    assert "**error_max_turns**" in runner.summary


def test_text_of_a_model_sets_no_output_and_gives_the_runner_no_command(runner: Runner) -> None:
    hostile = "::add-mask::x\nEOF\nresult<<EOF\nforged\nEOF\n::set-output name=result::forged"
    ran = runner.run(1, model=runner.place.script({"text": hostile}), prompt="$(touch made) `touch made` ${{ x }}")
    assert runner.outputs["result"] == hostile
    before, token, *_ = re.split(r"::stop-commands::(\w+)\n", ran.stdout)
    assert before == ""
    assert ran.stdout.endswith(f"::{token}::\n")
    assert not (runner.place.folder / "made").exists()


def test_the_key_reaches_the_provider_alone_and_the_runners_files_stay_out_of_reach(runner: Runner) -> None:
    shows = {"tool_calls": [{"name": "bash", "input": {"command": "env; echo done"}}]}
    model = runner.place.script(shows, {"text": "{{last_result}}"})
    given = {"api_key": "very-secret", "api_key_env": "OTHER_API_KEY", "permission_mode": "auto"}
    ran = runner.run(1, env={"GITHUB_TOKEN": "ghs_x", "ACTIONS_RUNTIME_TOKEN": "y"}, model=model, prompt="go", **given)
    assert "done" in runner.outputs["result"], ran.stderr
    for hidden in ("very-secret", "GITHUB_", "ACTIONS_", "INPUT_"):
        assert hidden not in runner.outputs["result"]
    assert (
        "is not the name of a variable"
        in runner.run(1, model=model, prompt="go", **given | {"api_key_env": "A=B"}).stderr
    )


@pytest.mark.parametrize(
    ("given", "installed"), [("", str(ROOT)), ("agentcli @ git+https://x", "agentcli @ git+https://x")]
)
def test_the_action_installs_its_own_version_or_the_one_that_is_named(
    runner: Runner, given: str, installed: str
) -> None:
    programs = runner.temp / "programs"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\n")
    pip = runner.temp / "agentcli/bin/pip"
    pip.write_text(f'#!/bin/sh\nfor last; do :; done; printf %s "$last" >{runner.temp}/installed\n')
    for program in (programs / "python3", pip):
        program.chmod(0o755)
    path = {"PATH": f"{programs}:{runner.place.environment['PATH']}", "RUNNER_OS": "Linux"}
    assert runner.run(0, env=path, version=given).returncode == 0
    assert (runner.temp / "installed").read_text() == installed


@pytest.mark.parametrize("file", [ROOT / "action.yml", *sorted((ROOT / "examples/workflows").glob("*.yml"))], ids=str)
def test_no_expression_is_pasted_into_a_shell(file: Path) -> None:
    described = yaml.safe_load(file.read_text())
    jobs = described.get("jobs", {"action": described.get("runs")})
    scripts = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]


# The hook


def git(place: Place, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=place.folder, capture_output=True, text=True, check=True)
    return done.stdout


def stage(place: Place, text: str) -> None:
    git(place, "init", "--quiet")
    (place.folder / "a.py").write_text(text)
    git(place, "add", "a.py")


def review(place: Place, *replies: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    environment = {**place.environment, "AGENTCLI_MODEL": place.script(*replies)}
    command = [sys.executable, str(REVIEW), "--max-turns", "3"]
    return subprocess.run(command, cwd=place.folder, env=environment, capture_output=True, text=True, check=False)


def verdict(commit: bool, *problems: str) -> dict[str, str]:
    findings = [{"file": "a.py", "line": 1, "problem": problem} for problem in problems]
    return {"text": json.dumps({"commit": commit, "findings": findings})}


@pytest.mark.parametrize(("commit", "code"), [(True, 0), (False, 1)])
def test_the_hook_prints_findings_and_fails_if_the_review_says_so(place: Place, commit: bool, code: int) -> None:
    stage(place, "x = 1\n")
    ran = review(place, verdict(commit, "x is\x1bnever used"))
    assert (ran.returncode, ran.stdout) == (code, "a.py:1: x is never used\n"), ran.stderr


def test_the_hook_changes_nothing_and_asks_nothing_without_a_diff(place: Place) -> None:
    stage(place, "x = 1\n")
    writes = {"tool_calls": [{"name": "file_write", "input": {"path": "a.py", "content": ""}}]}
    assert review(place, writes, verdict(True)).returncode == 0
    assert (place.folder / "a.py").read_text() == "x = 1\n"
    git(place, "rm", "--quiet", "--cached", "a.py")
    assert review(place, {"error": {"kind": "auth"}}).returncode == 0


def test_a_review_that_fails_is_not_taken_for_findings(place: Place) -> None:
    stage(place, "x = 1\n")
    ran = review(place, {"error": {"kind": "auth"}})
    assert ran.returncode == 2
    assert "there is no review" in ran.stdout
    assert "SKIP=agentcli-review" in ran.stdout


@pytest.mark.oracle
def test_pre_commit_runs_the_hook_on_what_is_staged(place: Place) -> None:
    pytest.importorskip("pre_commit", reason="pre-commit is not installed")
    stage(place, "x = 1\n")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    hook |= {"entry": f"{sys.executable} {REVIEW}", "language": "system"}  # it installs the whole package otherwise
    config = {"repos": [{"repo": "local", "hooks": [hook]}]}
    (place.folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    git(place, "add", ".")
    env = {
        **place.environment, "PRE_COMMIT_HOME": str(place.home / "pre-commit"),
        "AGENTCLI_MODEL": place.script(verdict(False, "x is never used")),
    }  # fmt: skip
    command = [sys.executable, "-m", "pre_commit", "run"]
    ran = subprocess.run(command, cwd=place.folder, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert "a.py:1: x is never used" in ran.stdout


# The dev container


def test_the_feature_installs_the_named_version_with_its_extras(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bwrap", "git"):
        (programs / name).symlink_to("/bin/true")
    venv = 'mkdir -p "$4/bin"; for name in pip agentcli; do ln -sf "$0" "$4/bin/$name"; done'
    (programs / "python3").write_text(
        f'#!/bin/sh\ncase "$*" in "-m venv"*) {venv} ;; install*) echo "$4" >{tmp_path}/installed ;; esac\n'
    )
    (programs / "python3").chmod(0o755)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "AGENTCLI_PREFIX": str(tmp_path / "p"), "AGENTCLI_BIN": str(tmp_path)}
    command = ["sh", str(ROOT / "devcontainer/src/agentcli/install.sh")]
    for version, requirement in (("a.whl", "a.whl[mcp]"), ("agentcli @ https://x", "agentcli[mcp] @ https://x")):
        subprocess.run(command, env=env | {"VERSION": version, "EXTRAS": "mcp"}, check=True, capture_output=True)
        assert (tmp_path / "installed").read_text().strip() == requirement
    unnamed = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert (unnamed.returncode, 'set the option "version"' in unnamed.stderr) == (1, True)
