"""`agentcli eval skill`: cases run with and without a skill, assertions are graded, and a gain is told from chance."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.app.eval_tasks import writes
from tests.app.running import Place
from tests.conformance.confining import folder_on_disk
from tests.conformance.replies import Call, Said, chat_reply
from tests.conformance.servers import Received, Reply, chat_server
from tests.processes import needs_bubblewrap

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ASKS_THE_SKILL = [
    {"tool_calls": [{"name": "skill", "input": {"name": "greeter", "level": 3, "resource": "greeting.txt"}}]},
    {"text": "{{last_result}}"},
]


def add_skill(place: Place, *cases: Mapping[str, Any], greeting: str = "Ahoy, Ann!") -> str:
    folder = place.folder.parent / "greeter"
    write(folder / "SKILL.md", "---\nname: greeter\ndescription: Greets people.\n---\nUse greeting.txt.\n")
    write(folder / "greeting.txt", greeting)
    if cases:
        write(folder / "evals/evals.json", json.dumps({"skill_name": "greeter", "evals": cases}))
    return str(folder)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def case(*assertions: str | Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": 1, "prompt": "Greet Ann", "expected_output": "a greeting", "assertions": assertions, **more}


def test_a_useful_skill_shows_a_gain_beyond_chance(place: Place) -> None:
    skill = add_skill(place, case({"type": "regex", "pattern": "Ahoy"}))
    ran = place.run("eval", "skill", skill, "-m", place.script(*ASKS_THE_SKILL))
    assert ran.code == 0, ran.err
    assert "eval-1  0/3  3/3  +1.00  better" in ran.out
    assert "greeter helps (by chance in 4.4% of cases)" in ran.out


def test_a_useless_skill_shows_no_gain(place: Place) -> None:
    skill = add_skill(place, case({"type": "regex", "pattern": "Ahoy"}), greeting="Be a good assistant.")
    ran = place.run("eval", "skill", skill, "-m", place.script(*ASKS_THE_SKILL), "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert (told["skill"], told["better_beyond_chance"], told["score_difference"]) == ("greeter", False, 0.0)


def test_a_text_is_judged_by_a_model_that_reads_the_files_of_the_attempt(place: Place) -> None:
    def judges(received: Received) -> Reply:
        prompt = json.dumps(received.json["messages"])
        grades = [{"evidence": f"{word!r}", "passed": word in prompt} for word in ("Hello, Ann", "Kraken")]
        return chat_reply(json.dumps({"value": grades}))

    reads = chat_reply(Said(calls=(Call("c", "file_read", {"path": "greeting.txt"}),)))
    skill = add_skill(place, case("It greets Ann", "It names a monster", files=["evals/files/names/a.txt"]))
    write(Path(skill) / "evals/files/names/a.txt", "Ann")
    greets = {"tool_calls": [{"name": "bash", "input": {"command": "echo Hello, $(cat names/a.txt) >greeting.txt"}}]}
    with chat_server([reads, judges] * 2) as server:
        env = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-1"}
        arguments = (
            "-m",
            place.script(greets, {"text": "Done."}),
            "--judge-model",
            "openai/m",
            "--samples",
            "1",
            "--json",
        )
        ran = place.run("eval", "skill", skill, *arguments, env=env)
        assert ran.code == 0, ran.err
        asked = server.requests[0].json
    assert "1. It greets Ann" in json.dumps(asked)
    assert "Input files: names/a.txt" in json.dumps(asked)
    assert {tool["function"]["name"] for tool in asked["tools"]} == {"file_read", "file_list", "grep_search"}
    (attempt,) = json.loads(place.run("eval", "show", "greeter-with", "--json").out)["tasks"]
    assert (attempt["score"], attempt["passed"]) == (0.5, False)
    assert "It names a monster: 'Kraken'" in attempt["reason"]


def test_a_command_decides_in_the_copy_that_the_attempt_left(place: Place) -> None:
    counts = 'test "$(cat answer.txt)" = 42'
    skill = add_skill(place, case(*({"type": "command", "command": one} for one in (counts, "echo too few; false"))))
    model = place.script(writes("42"), {"text": "Done."})
    ran = place.run("eval", "skill", skill, "-m", model, "--samples", "1", "--json")
    assert ran.code == 0, ran.err
    (attempt,) = json.loads(place.run("eval", "show", "greeter-with", "--json").out)["tasks"]
    assert (attempt["score"], "too few" in attempt["reason"], counts in attempt["reason"]) == (0.5, True, False)


@needs_bubblewrap
def test_no_skill_reads_secrets_of_the_person_by_its_links_or_its_commands(place: Place) -> None:
    with folder_on_disk() as home:
        place.environment |= {"HOME": str(home), "AGENTCLI_HOME": str(home / "moved")}
        secrets = [home / ".ssh/id_rsa", home / "moved/config.toml", home / "masked"]
        for file in secrets:
            write(file, f'# CANARY\n[sandbox]\nmasked = ["{home}/masked"]\n')
        reads = f"! cat {' '.join(map(str, secrets))} | grep CANARY"
        no_link = {"type": "regex", "pattern": "^(?!.*CANARY)"}
        skill = add_skill(place, case({"type": "command", "command": reads}, no_link))
        (Path(skill) / "greeting.txt").unlink()
        (Path(skill) / "greeting.txt").symlink_to(secrets[0])
        ran = place.run("eval", "skill", skill, "-m", place.script(*ASKS_THE_SKILL), "--samples", "1", "--json")
        assert ran.code == 0, ran.err
        (attempt,) = json.loads(place.run("eval", "show", "greeter-with", "--json").out)["tasks"]
    assert attempt["passed"], attempt["reason"]


def test_the_graders_of_a_plugin_count_as_claude_code_counts_them(place: Place) -> None:
    """Its tools have Claude Code's names, and a call of the skill is no part of the score."""
    plugin, folder = place.folder.parent / "plugin", place.folder.parent / "converted"
    write(plugin / "skills/greeter/SKILL.md", "---\nname: greeter\ndescription: Greets people.\n---\nGreet.\n")
    graders = {
        "says": 'type: regex\npattern: "^done\\\\."\nflags: i',
        "file": 'type: regex\npattern: "Hello"\ntarget: {source: file, path: out/a.txt}',
        "missing": "type: regex\npattern: x\nmatch: not_contains\ntarget: {source: file, path: b.txt}",
        "wrote": 'type: tool_used\ntool: Write\ninput_match: \'"file_path":"[^"]*a.txt"\'\nmax: 1',
        "order": "type: tool_order\nbefore: Write\nafter: {tool: Bash, input_match: ls}",
        "reversed": "type: tool_order\nbefore: Bash\nafter: Write",
        "exists": 'type: file_exists\npath: "**/*.txt"',
        "fired": "type: tool_used\ntool: Skill",
    }
    for name, head in graders.items():
        write(plugin / f"evals/greets/graders/{name}.md", f"---\n{head}\n---\n")
    write(plugin / "evals/greets/prompt.md", "---\nmax_turns: 5\nallowed_tools: [Write]\n---\nGreet Ann\n")
    converts = [sys.executable, str(ROOT / "integrations/plugin_evals.py"), str(plugin), str(folder)]
    converted = subprocess.run(converts, capture_output=True, text=True, check=True)
    assert "fired.md: left out" in converted.stderr
    lists = {"tool_calls": [{"name": "bash", "input": {"command": "ls"}}]}
    model = place.script(writes("Hello", "out/a.txt"), lists, {"text": "Done."})
    ran = place.run("eval", "skill", str(folder), "-m", model, "--samples", "1", "--json")
    assert ran.code == 0, ran.err
    (attempt,) = json.loads(place.run("eval", "show", "converted-with", "--json").out)["tasks"]
    failed = [line.partition(":")[0] for line in attempt["reason"].splitlines() if ": " in line]
    assert (failed, attempt["score"]) == (["missing", "reversed"], 0.714), attempt["reason"]


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        ((), "needs a SKILL.md, and cases"),
        ((case("x"), case("y")), "with different ids"),
        ((case({"type": "regex", "value": "x"}),), "not an assertion"),
        ((case({"type": "regex", "pattern": "("}),), "unterminated subpattern"),
        ((case("x", files=["../secret"]),), "must be in the skill's folder"),
    ],
)
def test_wrong_evals_are_an_error_before_a_model_is_asked(place: Place, cases: Any, says: str) -> None:
    ran = place.run("eval", "skill", add_skill(place, *cases), "-m", "scripted/missing")
    assert (ran.code, says in ran.err) == (2, True), ran.err
