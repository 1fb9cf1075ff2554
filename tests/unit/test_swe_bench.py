"""Tasks of SWE-bench's form: the agent's copy holds no solution, and the hidden tests decide."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentcli.cli.subcommands.eval import run
from agentcli.errors import UsageError
from agentcli.evals.attempt import LocalEngine
from agentcli.evals.store import Outcome, Variant
from agentcli.evals.task import Task
from agentcli.settings.files import find_paths
from agentcli.settings.load import load_config

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "integrations"))
import swe_bench  # noqa: E402

pytestmark = pytest.mark.slow  # real repositories, and a sandbox that hides files

NAME = "owner__calc-1"
UNITTEST = "python3 -m unittest {tests}"
PYTEST = f"{sys.executable} -m pytest -q {{tests}}"
TEST = """import unittest
from calc import add, double

class Calc(unittest.TestCase):
    def test_double(self):
        self.assertEqual(double(3), 6)
"""
MORE = """
    def test_add(self):
        self.assertEqual(add(2, 2), 4)

    def test_add_none(self):
        self.assertEqual(add(5, 0), 5)
"""
BUG = "def add(a, b):\n    return a - b\n\ndef double(a):\n    return 2 * a\n"
MENDED = BUG.replace("a - b", "a + b")


class Origin:
    """A clone with a bug, mended later; `instance` is its line."""

    def __init__(self, folder: Path) -> None:
        self.repositories = folder / "repos"
        self.clone = self.repositories / "owner__calc"
        (self.clone / "tests").mkdir(parents=True)
        self.git("init", "--quiet", "-b", "main")
        self.commit("old", {"calc.py": "# nothing\n"})
        self.base = self.commit("base", {"calc.py": BUG, "tests/__init__.py": "", "tests/test_calc.py": TEST})
        self.fix = self.commit("fix", {"calc.py": MENDED, "tests/test_calc.py": TEST + MORE})
        self.git("tag", "v2")
        self.file = folder / "instances.jsonl"
        self.instance = {
            "instance_id": NAME,
            "repo": "owner/calc",
            "base_commit": self.base,
            "problem_statement": "add subtracts\n\n`add(2, 2)` gives 0.",
            "patch": self.git("diff", self.base, self.fix, "--", "calc.py"),
            "test_patch": self.git("diff", self.base, self.fix, "--", "tests"),
            "FAIL_TO_PASS": json.dumps(["tests.test_calc.Calc.test_add"]),
            "PASS_TO_PASS": ["tests.test_calc.Calc.test_double"],
            "test_cmd": UNITTEST,
            "hints_text": "",
            "version": "1.0",
        }

    def git(self, *arguments: str) -> str:
        person = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", *person, *arguments], cwd=self.clone, capture_output=True, text=True, check=True)
        return done.stdout

    def commit(self, message: str, files: Mapping[str, str]) -> str:
        for name, text in files.items():
            (self.clone / name).write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", message)
        return self.git("rev-parse", "HEAD").strip()

    def write(self, **changes: Any) -> Path:
        instance = {name: value for name, value in {**self.instance, **changes}.items() if value is not None}
        self.file.write_text(json.dumps(instance) + "\n")
        return self.file

    def with_pytest(self) -> dict[str, Any]:
        test = "tests/test_calc.py::Calc::test_"
        return {
            "test_cmd": PYTEST,
            "FAIL_TO_PASS": [f"{test}add", f"{test}add_none"],
            "PASS_TO_PASS": [f"{test}double"],
        }


@pytest.fixture
def origin(tmp_path):
    return Origin(tmp_path)


def converted(file: Path, clones: Path, folder: Path, names: list[str] | None = None) -> list[Task]:
    return swe_bench.convert(file, clones, folder, names or [])


def attempt(origin: Origin, tmp_path: Path, model: str | list[dict[str, Any]], **changes: Any) -> Outcome:
    [task] = converted(origin.write(**changes), origin.repositories, tmp_path / "tasks")
    if not isinstance(model, str):
        script = tmp_path / "script.jsonl"
        script.write_text("".join(json.dumps(reply) + "\n" for reply in model))
        model = f"scripted/{script}"
    person = load_config(tmp_path, paths=find_paths(str(tmp_path / "home")))
    # The sandbox has a /tmp of its own, where this Python and the folders of the test may lie.
    settings = {"sandbox": {"writable": [sys.prefix, str(tmp_path)]}}
    return asyncio.run(made(LocalEngine(person, Variant(model=model, settings=settings)), task))


async def made(attempts: LocalEngine, task: Task) -> Outcome:
    try:
        return (await attempts.attempt_task(task, 1)).outcome
    finally:
        await attempts.aclose()


def bash(command: str) -> list[dict[str, Any]]:
    return [{"tool_calls": [{"name": "bash", "input": {"command": command}}]}, {"text": "Done."}]


def write(path: str, text: str) -> str:
    return f"cat > {path} <<'END'\n{text}END\n"


@pytest.mark.parametrize("command", [UNITTEST, PYTEST])
@pytest.mark.parametrize(("model", "passed", "score"), [("reference", True, 1.0), ("nothing", False, 0.5)])
def test_the_reference_passes_and_nothing_fails(origin, tmp_path, command, model, passed, score):
    changes = {}
    if command == PYTEST:
        bare = origin.repositories / "owner" / "calc"
        origin.git("clone", "--quiet", "--bare", ".", str(bare))
        shutil.rmtree(origin.clone)
        changes = origin.with_pytest()
    outcome = attempt(origin, tmp_path, f"scripted/{model}", **changes)
    # Adding 0 is right with the bug, too, which one of two tests of pytest does.
    assert (outcome.passed, outcome.check.score) == (passed, score if passed or command == PYTEST else 0)
    assert (outcome.check.reason == "", outcome.work.tool_errors) == (passed, {})


def test_a_test_that_broke_leaves_no_score(origin, tmp_path):
    broken = MENDED.replace("2 * a", "3 * a")
    outcome = attempt(origin, tmp_path, bash(write("calc.py", broken)), **origin.with_pytest())
    assert (outcome.passed, outcome.check.score) == (False, 0)
    assert "1 of 1 that passed are broken" in outcome.check.reason


@pytest.mark.full
def test_an_id_that_the_data_set_cut_and_one_that_does_not_exist(origin, tmp_path):
    patch = (
        "diff --git a/tests/test_more.py b/tests/test_more.py\nnew file mode 100644\n--- /dev/null\n"
        "+++ b/tests/test_more.py\n@@ -0,0 +1,4 @@\n+import pytest, calc\n"
        '+@pytest.mark.parametrize("word", ["a b", "c"])\n+def test_word(word):\n+    assert calc.add(1, 1) == 2\n'
    )
    test = "tests/test_more.py::test_"
    changes = {"test_cmd": PYTEST, "test_patch": patch, "PASS_TO_PASS": []}
    passing = attempt(origin, tmp_path, "scripted/reference", **changes, FAIL_TO_PASS=[f"{test}word[a"])
    assert (passing.passed, passing.check.reason) == (True, "")
    half = attempt(origin, tmp_path, "scripted/reference", **changes, FAIL_TO_PASS=[f"{test}word[c]", f"{test}gone"])
    assert (half.passed, half.check.score) == (False, 0.5)
    assert f"{test}gone" in half.check.reason


@pytest.mark.full
def test_changes_that_an_agent_makes_to_the_tests_do_not_count(origin, tmp_path):
    easy = TEST + MORE.replace("4", "0")
    commands = write("tests/test_calc.py", easy) + "git update-index --skip-worktree tests/test_calc.py"
    outcome = attempt(origin, tmp_path, bash(commands))
    assert (outcome.passed, outcome.check.score, outcome.work.tool_errors) == (False, 0, {})
    assert "AssertionError: 0 != 4" in outcome.check.reason


@pytest.mark.full
@pytest.mark.parametrize("made", ["rm tests/test_calc.py", "rm tests/test_calc.py; mkdir -p tests/test_calc.py/x"])
def test_tests_that_an_agent_took_away_are_there_again(origin, tmp_path, made):
    outcome = attempt(origin, tmp_path, bash(write("calc.py", MENDED) + made))
    assert (outcome.passed, outcome.check.reason) == (True, "")


def test_a_test_file_that_is_renamed(origin, tmp_path):
    origin.git("mv", "tests/test_calc.py", "tests/test_sums.py")
    renamed = origin.commit("rename", {})
    patch = origin.git("diff", "-M", origin.base, renamed, "--", "tests")
    assert "rename from" in patch
    changes = {"test_patch": patch, "FAIL_TO_PASS": ["tests.test_sums"], "PASS_TO_PASS": []}
    edits = "echo 1 > tests/test_calc.py; echo 1 > tests/test_sums.py"
    outcome = attempt(origin, tmp_path, bash(write("calc.py", MENDED) + edits), **changes)
    assert (outcome.passed, outcome.check.reason) == (True, "")


def test_the_future_is_not_in_the_copy(origin, tmp_path):
    looks = [
        f"! git cat-file -e {origin.fix}",
        f"! git cat-file -e $(git rev-parse {origin.base}~1 2>/dev/null || echo none)",
        f'test "$(git log --all --reflog --format=%H)" = {origin.base}',
        'test -z "$(git remote)$(git tag)"',
        'test "$(git for-each-ref --format="%(refname)")" = refs/heads/main',
        'test "$(git symbolic-ref HEAD)" = refs/heads/main',
        f"! grep -r {origin.clone} .git",
        "! test -e .git/objects/info/alternates",
        'test "$(git status --porcelain)" = ""',
    ]
    blob = origin.git("rev-parse", f"{origin.fix}:calc.py").strip()
    looks.append(f"! git cat-file -e {blob}")
    command = "\n".join(
        f"({look}) 2>/dev/null || {{ echo not so: look {number}; exit 1; }}" for number, look in enumerate(looks)
    )
    outcome = attempt(origin, tmp_path, "scripted/nothing", test_cmd=command, test_patch="")
    assert (outcome.passed, outcome.check.reason) == (True, "")
    assert origin.git("cat-file", "-t", blob) == "blob\n"  # the looks find what is there


def test_a_commit_that_no_branch_leads_to(origin, tmp_path):
    origin.git("checkout", "--quiet", "--detach", origin.base)
    lost = origin.commit("lost", {"extra.txt": "x\n"})
    origin.git("checkout", "--quiet", "main")
    outcome = attempt(
        origin, tmp_path, "scripted/reference", base_commit=lost, test_cmd=f"test -e extra.txt && {UNITTEST}"
    )
    assert (outcome.passed, outcome.check.reason) == (True, "")


def test_the_agent_sees_neither_the_clone_nor_the_tasks(origin, tmp_path):
    (tmp_path / "seen.txt").write_text("other files are seen\n")
    files = f"{origin.clone}/calc.py {tmp_path}/tasks/{NAME}/reference.jsonl {tmp_path}/seen.txt"
    look = f"cat {files}; git -C {origin.clone} log"
    check = "cat seen.txt; grep 'are seen' seen.txt && ! grep -E 'a . b|commit' seen.txt"
    outcome = attempt(origin, tmp_path, bash(f"({look}) > seen.txt 2>&1; true"), test_cmd=check)
    assert (outcome.passed, outcome.check.reason) == (True, "")


def test_the_same_file_gives_the_same_tasks(origin, tmp_path):
    file = origin.write()
    [one] = converted(file, origin.repositories, tmp_path / "a")
    version = one.version
    [again] = converted(file, origin.repositories, tmp_path / "a", [NAME])
    assert (again.version, again.name, again.title) == (version, NAME, "add subtracts")
    [other] = converted(origin.write(patch="other"), origin.repositories, tmp_path / "a")
    assert other.version != version
    [newer] = converted(origin.write(base_commit=origin.fix), origin.repositories, tmp_path / "a")
    assert (newer.folder / "start/calc.py").read_text() == MENDED


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"patch": None}, r"line 1: .*`patch`"),
        ({"base_commit": "--upload-pack=x"}, r"line 1: .*base_commit"),
        ({"instance_id": "../../x"}, r"line 1: .*instance_id"),
        ({"instance_id": "x/y"}, r"line 1: .*instance_id"),
        ({"instance_id": ".."}, r"line 1: .*instance_id"),
        ({"instance_id": "x\n"}, r"line 1: .*instance_id"),
        ({"repo": "../calc"}, r"line 1: .*repo"),
        ({"FAIL_TO_PASS": "[1"}, r"line 1: FAIL_TO_PASS: not a list"),
        ({"FAIL_TO_PASS": []}, r"line 1: FAIL_TO_PASS: it names no test"),
        ({"PASS_TO_PASS": 3}, r"line 1: .*PASS_TO_PASS"),
        ({"repo": "owner/other"}, r"line 1: repo: .*repos/owner__other, .*repos/owner/other, .*repos/other\. "),
    ],
)
def test_an_error_names_line_and_field(origin, tmp_path, changes, told):
    with pytest.raises(UsageError, match=told):
        converted(origin.write(**changes), origin.repositories, tmp_path / "tasks")
    assert not (tmp_path / "tasks").exists()


def test_errors_of_the_file_itself(origin, tmp_path):
    line = origin.write().read_text()
    for text, told in [
        ("\n", "contains no instances"),
        (line + line, f"line 2: instance_id: {NAME} is a duplicate"),
        (line + "{", "line 2: "),
    ]:
        origin.file.write_text(text)
        with pytest.raises(UsageError, match=told):
            converted(origin.file, origin.repositories, tmp_path / "tasks")
    with pytest.raises(UsageError, match="Could not read"):
        converted(tmp_path / "none.jsonl", origin.repositories, tmp_path / "tasks")
    with pytest.raises(UsageError, match=f"no instance owner__calc-2.*mean {NAME}"):
        converted(origin.write(), origin.repositories, tmp_path / "tasks", ["owner__calc-2"])


def test_a_commit_that_the_clone_lacks(origin, tmp_path):
    with pytest.raises(UsageError, match=f"{NAME}: `git .*rev-parse"):
        attempt(origin, tmp_path, "scripted/nothing", base_commit="0" * 39 + "1")


def test_only_the_named_instances_need_a_clone(origin, tmp_path):
    line = origin.write(instance_id="other__x-1", repo="other/x").read_text()
    origin.file.write_text(line + origin.write().read_text())
    assert [task.name for task in converted(origin.file, origin.repositories, tmp_path / "t", [NAME])] == [NAME]


def test_eval_run_takes_the_tasks_that_the_script_has_made(origin, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    script, folder = str(ROOT / "integrations/swe_bench.py"), str(tmp_path / "tasks")
    converts = [sys.executable, script, str(origin.write()), str(origin.repositories), folder]
    assert subprocess.run(converts, capture_output=True, text=True, check=True).stdout == f"1 tasks in {folder}\n"
    assert run(["run", NAME, "--tasks", folder, "-m", "scripted/reference", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["passed"] == 1
    failed = subprocess.run([*converts, "other"], capture_output=True, text=True, check=False)
    assert (failed.returncode, "has no instance other" in failed.stderr) == (1, True)
