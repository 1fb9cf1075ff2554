"""Skills load in three steps, are activated by the model or the person, and change nothing beyond their time."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, Message, UsageError
from agentcli.skills import Skill, SkillRegistry, read_skill
from tests.app.running import Commanded, Place, Ran, call
from tests.conformance.replies import anthropic_reply
from tests.conformance.servers import anthropic_server

BUNDLED = sorted(path.parent.name for path in (Path(__file__).parents[2] / "skills").glob("*/SKILL.md"))


def skill(folder: Path, name: str, body: str = "Follow me.", **keys: str) -> Path:
    """A skill with these keys (`_` stands for `-`)."""
    lines = {"name": name, "description": f"About {name}.", **{k.replace("_", "-"): v for k, v in keys.items()}}
    front = "".join(f"{key}: {value}\n" for key, value in lines.items())
    file = folder / name / "SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_text(f"---\n{front}---\n\n{body}\n")
    return file.parent


@pytest.fixture
def own(place: Place) -> Path:
    """The person's folder of skills."""
    return place.home / "skills"


def use(name: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [call("skill", name=name, **more)]}


END: dict[str, Any] = {"tool_calls": [call("skill", end=True)]}
DONE = {"text": "done"}


def stream(place: Place, *replies: dict[str, Any], prompt: str = "go", flags: tuple[str, ...] = ()) -> Ran:
    ran = place.run("-p", prompt, "-m", place.script(*replies, DONE), "--output-format", "stream-json", *flags)
    assert ran.code == 0, ran.err
    return ran


def results(ran: Ran) -> list[str]:
    return [line["message"]["content"][0].get("content", "") for line in ran.of("user")]


def told(place: Place, session: str) -> str:
    """All that the model is told in the session's messages."""
    shown = json.loads(place.run("sessions", "show", session, "--json").out)
    return json.dumps(shown["messages"], ensure_ascii=False)


def listed(place: Place, *flags: str) -> dict[str, dict[str, Any]]:
    ran = place.run("skills", "list", "--json", *flags)
    assert ran.code == 0, ran.err
    return {row["name"]: row for row in json.loads(ran.out)}


def test_the_model_activates_a_skill_and_is_reported_its_text_once(place: Place, own: Path) -> None:
    folder = skill(own, "pdf", "Use the script.")
    (folder / "scripts").mkdir()
    (folder / "scripts/fill.py").write_text("print(1)\n")
    ran = stream(place, use("pdf"))
    assert results(ran) == ["The skill pdf is active; its instructions follow."]
    text = told(place, ran.result["session_id"])
    assert text.count("Use the script.") == 1
    assert "scripts/fill.py" in text
    assert [line["active"] for line in ran.of("system", "skill")] == [True, False]
    assert "The skill pdf has ended" in text


def test_its_files_are_given_on_demand_and_nothing_else(place: Place, own: Path) -> None:
    folder = skill(own, "pdf")
    (folder / "notes.md").write_text("Level three.")
    (own / "secret.md").write_text("not of the skill")
    (folder / "out.md").symlink_to(own / "secret.md")
    ran = stream(
        place,
        use("pdf", resource="notes.md"),
        use("pdf", resource="../secret.md"),
        use("pdf", resource="out.md"),
        use("pdf", resource="none.md"),
        use("pdf", level=3),
        use("pdf"),
        {"tool_calls": [call("file_read", path=str(folder / "notes.md"))]},
    )
    first, *refused, names, _, read = results(ran)
    assert first == "Level three."
    assert all("not_found" in text and "not of the skill" not in text for text in refused)
    assert names.splitlines() == ["notes.md", "out.md"]
    assert "Level three." in read  # outside of the workspace, and nobody was asked


def test_skills_nest_with_a_stack_and_no_cycle(place: Place, own: Path) -> None:
    for name in ("a", "b", "c", "d"):
        skill(own, name)
    ran = stream(
        place,
        *(use(name) for name in ("a", "a", "b", "a", "c", "d")),
        {"tool_calls": [call("skill", name="a", end=True)]},
        *(END for _ in range(4)),
    )
    said = results(ran)
    assert "a → a" in said[1]
    assert "a → b → a" in said[3]
    assert "nest at most 3 deep" in said[5]
    assert "a → b → c → d" in said[5]
    assert "c is the innermost" in said[6]
    assert [text.split()[2] for text in said[7:10]] == ["c", "b", "a"]
    assert "None of the skills you activated" in said[10]


def test_what_the_model_may_not_activate_it_is_not_reported_of(place: Place, own: Path) -> None:
    skill(own, "open")
    skill(own, "mine", disable_model_invocation="true")
    ran = stream(place, use("mine"), use("open", level=1), {"tool_calls": [call("skill", name="opne")]})
    refused, found, unknown = results(ran)
    assert "Only the user" in refused
    assert "mine" not in found
    assert "open" in found
    assert "did you mean open" in unknown


def test_a_person_s_skill_stays_until_it_is_switched_off(place: Place, own: Path) -> None:
    skill(own, "tone", "Be brief. The task: $ARGUMENTS")
    script = place.script({"text": "one"}, {"text": "two"}, {"text": "three"})
    with place.talk(script) as running:
        running.say("/tone write a haiku")
        ended = running.wait_for(lambda line: line.get("result") == "one")
        commanded = Commanded(running, answered=1)
        assert "● on" in commanded.command("/skills")
        commanded.say("more", "two")
        assert "Turned off tone" in commanded.command("/skills off tone")
        assert "○" in commanded.command("/skills")
        commanded.say("and now", "three")
    text = told(place, ended["session_id"])
    assert text.count("Be brief. The task: write a haiku") == 1
    assert text.index("Be brief") < text.index("write a haiku") < text.index("has ended") < text.index("and now")


def test_a_person_s_skill_outlives_the_program(place: Place, own: Path) -> None:
    skill(own, "careful", tools="Read, Grep")
    first = stream(place, prompt="/careful look")
    assert first.lines[0]["skills"].count("careful") == 1
    write = {"tool_calls": [call("bash", command="touch made")]}
    ran = stream(place, write, flags=("-c", "--permission-mode", "bypassPermissions"))
    assert "the skill careful allows only Read, Grep" in results(ran)[0]
    assert not (place.folder / "made").exists()
    assert told(place, ran.result["session_id"]).count("Follow me.") == 1


@pytest.mark.slow
def test_tools_allowed_by_a_skill_run_unasked_until_the_next_prompt(place: Place, own: Path) -> None:
    skill(own, "builder", allowed_tools="Bash(touch:*) Read")
    plain = {"tool_calls": [call("file_write", path="made", content="x")]}
    ran = stream(place, use("builder"), plain)
    assert "no one can approve it" in results(ran)[1]  # an edit is not what it allows
    skill(own, "writer", allowed_tools="[Write]")
    ran = stream(place, use("writer"), plain)
    assert (place.folder / "made").read_text() == "x"
    ran = stream(place, {"tool_calls": [call("file_write", path="more", content="x")]}, flags=("-c",))
    assert "no one can approve it" in results(ran)[0]
    ran = stream(place, use("writer"), plain, flags=("--deny", "Write"))
    assert "denies it" in results(ran)[1]


def test_a_skill_s_model_and_effort_end_with_it_whatever_is_nested(place: Place, own: Path) -> None:
    inner = place.script({"text": "", **END}, {"text": "inner"})
    outer = place.script(use("inner"), {"text": "outer"})
    skill(own, "outer", model=outer)
    skill(own, "inner", model=inner)
    ran = stream(place, use("outer"), {"text": "base"})
    assert ran.result["result"] == "outer"
    switches = [(line["from"], line["to"]) for line in ran.of("system", "provider_switch")]
    base = ran.lines[0]["model"]
    assert switches == [(base, outer), (outer, inner), (inner, outer)]
    ran = stream(place, {"text": "base"}, flags=("-c",))
    assert (ran.lines[0]["model"], ran.result["result"]) == (ran.lines[0]["model"], "base")


def test_a_model_that_does_not_exist_is_reported_and_passed_over(place: Place, own: Path) -> None:
    skill(own, "fancy", model="gpt-99")
    ran = stream(place, use("fancy"))
    assert any("gpt-99" in line["text"] for line in ran.of("system", "notice"))
    assert ran.result["result"] == "done"


@pytest.mark.slow
def test_a_project_s_skills_count_only_as_they_were_trusted(place: Place) -> None:
    subprocess.run(["git", "init", "-q"], cwd=place.folder, check=True)
    folder = skill(place.folder / ".agents/skills", "deploy")
    (folder / "run.sh").write_text("echo 1\n")
    assert "config trust" in place.run("-p", "go", "-m", place.script(DONE)).err
    assert not listed(place)["deploy"]["active"]
    assert place.run("config", "trust").code == 0
    assert listed(place)["deploy"]["active"]
    (folder / "run.sh").write_text("echo 2\n")
    assert "config trust" in place.run("-p", "go", "-m", place.script(DONE)).err


def test_a_trusted_skill_that_is_changed_in_the_session_grants_nothing(place: Place) -> None:
    folder = skill(place.folder / ".agents/skills", "deploy", allowed_tools="Bash")
    change = {"tool_calls": [call("bash", command="echo more >>.agents/skills/deploy/SKILL.md")]}
    ran = stream(place, change, use("deploy"), flags=("--trust", "--permission-mode", "bypassPermissions"))
    assert folder.joinpath("SKILL.md").read_text().endswith("more\n")
    assert "changed since the session started" in results(ran)[1]


def test_files_of_other_tools_load_with_warnings(place: Place, own: Path) -> None:
    skill(own, "long", description=f"Use it so: {'x' * 1_100}")
    skill(own, "odd", flavour="sweet", version="2")
    file = skill(own, "folder") / "SKILL.md"
    file.write_text(file.read_text().replace("name: folder", "name: Other_Name"))
    (own / "broken").mkdir(parents=True)
    (own / "broken/SKILL.md").write_text("---\nname: [\n---\nx\n")
    (own / "silent").mkdir()
    (own / "silent/SKILL.md").write_text("---\nname: silent\n---\nx\n")
    first = place.run("-p", "go", "-m", place.script(DONE)).err
    assert "broken" in first
    assert "silent" in first
    assert "skipped" in first
    rows = listed(place)
    assert "1,1" in rows["long"]["warnings"][0]
    assert "flavour" in rows["odd"]["warnings"][0]
    assert "version" not in rows["odd"]["warnings"][0]
    assert "lower-case" in rows["Other_Name"]["warnings"][0]
    assert not rows["broken"]["active"]
    second = place.run("-p", "go", "-m", place.script(DONE)).err
    assert "flavour" not in second
    assert "skipped" in second


def test_a_failed_activation_leaves_everything_as_it_was(place: Place, own: Path) -> None:
    skill(own, "shell", "Now: !`touch made`", allowed_tools="Read")
    skill(own, "empty", "")
    ran = stream(place, use("shell"), use("empty"), END)
    assert "requires approval" in results(ran)[0]
    assert "no instructions" in results(ran)[1]
    assert "None of the skills you activated" in results(ran)[2]
    assert "<skill name" not in told(place, ran.result["session_id"])


def test_going_back_before_an_activation_ends_it(place: Place, own: Path) -> None:
    skill(own, "careful", tools="Read")
    write = {"tool_calls": [call("file_write", path="made", content="x")]}
    script = place.script({"text": "one"}, {"text": "two"}, write, {"text": "three"})
    mode = ("--permission-mode", "bypassPermissions")
    with place.talk(script, *mode) as running:
        commanded = Commanded(running)
        commanded.say("first", "one")
        commanded.say("/careful look", "two")
        commanded.count += 1  # the skill was a command, too
        commanded.command("/rewind 2 conversation")
        commanded.say("again", "three")
    assert (place.folder / "made").exists()


def test_bundled_skills_are_the_person_s_unless_a_setting_offers_them(place: Place) -> None:
    ran = stream(place)
    assert "skill" not in ran.lines[0]["tools"]
    assert sorted(ran.lines[0]["skills"]) == BUNDLED != []
    assert (
        "skill" in stream(place, flags=("--settings", settings(place, "[skills]\nbundled = true\n"))).lines[0]["tools"]
    )
    assert stream(place, flags=("--bare",)).lines[0]["skills"] == []


KEEP = {"compaction": {"keep_turns": 1, "strategy": "extract"}}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_each_bundled_skill_can_be_begun_with(place: Place, name: str) -> None:
    ran = place.run("-p", f"/{name} this very thing", "-m", place.script({"text": "begun"}), "--output-format", "json")
    assert json.loads(ran.out)["result"] == "begun"
    assert f'<skill name=\\"{name}\\"' in told(place, json.loads(ran.out)["session_id"])
    assert place.run("skills", "validate", str(Path(__file__).parents[2] / "skills" / name)).code == 0


async def test_an_active_skill_survives_compactions_and_changes_no_earlier_byte(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTCLI_HOME", str(place.home))
    skill(place.home / "skills", "careful", "Never forget the green ribbon.", allowed_tools="Write", effort="high")
    with anthropic_server([anthropic_reply("Fine.") for _ in range(4)]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
        async with Agent("anthropic/claude-sonnet-5-5", cwd=place.folder, options=AgentOptions(settings=KEEP)) as agent:
            await agent.run("one " * 2_000)
            session = await agent.session()
            await session.runtime.calls.delegates.get_or_make_skills().activate("careful")
            await agent.run("two " * 2_000)
            await agent.run("three")
            assert not isinstance(await session.compact(), str)
            await agent.run("four")
        requests = [request.json for request in server.requests]
    for before, after in pairwise(requests[:3]):
        assert (after["system"], after["tools"]) == (before["system"], before["tools"])
    assert len({json.dumps((request["system"], request["tools"])) for request in requests}) == 1
    assert "green ribbon" not in json.dumps(requests[0])
    told = [json.dumps(request["messages"]).count("green ribbon") for request in requests]
    assert told == [0, 1, 1, 1]


def settings(place: Place, text: str) -> str:
    file = place.folder.parent / "more.toml"
    file.write_text(text)
    return str(file)


@pytest.mark.slow
def test_new_validate_and_show(place: Place, own: Path) -> None:
    ran = place.run("skills", "new", "my-skill", "--description", "Says hello.")
    assert ran.code == 0, ran.err
    assert (own / "my-skill/SKILL.md").is_file()
    assert place.run("skills", "validate", str(own / "my-skill")).code == 0
    assert "Says hello." in place.run("skills", "show", "my-skill").out
    assert place.run("skills", "new", "my-skill").code == 2
    assert place.run("skills", "new", "Not A Name").code == 2
    shutil.copytree(own / "my-skill", own / "other")
    assert place.run("skills", "validate", str(own / "other")).code == 1
    assert place.run("skills", "show", "nothing").code == 2


def test_words_of_the_request_have_numbers_and_names(place: Place, own: Path) -> None:
    text = "$issue of $ARGUMENTS[1], $2, $ARGUMENTS[7]., $other in ${CLAUDE_SESSION_ID}"
    skill(own, "fix", text, arguments="[issue, branch]")
    (place.home / "commands").mkdir()
    (place.home / "commands/mend.md").write_text(f"---\narguments: issue branch\n---\n{text}\n")
    for prompt in ("/fix 12 'the main'", "/mend 12 'the main'"):
        ran = stream(place, prompt=prompt)
        session = ran.result["session_id"]
        assert f"12 of the main, the main, ., $other in {session}" in told(place, session)


def test_validate_names_keys_that_change_nothing(place: Place, own: Path) -> None:
    folder = skill(own, "pdf", context="fork", agent="explore", version="1.0")
    ran = place.run("skills", "validate", str(folder))
    assert ran.code == 0
    assert "(not used by agentcli: context, agent)" in ran.out
    for kind, keys in (("agents", "permissionMode: plan\ncolor: red"), ("commands", "model: inherit\nhooks: {}")):
        (place.home / kind).mkdir()
        (place.home / f"{kind}/x.md").write_text(f"---\ndescription: About.\n{keys}\n---\nDo it.\n")
    listed = place.run("skills", "validate").out
    assert "agents/x.md\n  (not used by agentcli: permissionMode)" in listed
    assert "commands/x.md\n  (not used by agentcli: hooks)" in listed


def test_a_program_activates_skills_in_a_history_of_its_own(tmp_path: Path) -> None:
    registry = SkillRegistry()
    registry.register(read_skill(skill(tmp_path, "pdf", "Fill it in."), "library"))
    registry.register(Skill("empty", "Says nothing.", str(skill(tmp_path, "empty", "")), "library"))
    history: list[Message] = []
    activation = registry.activate("pdf", request="the form", history=history)
    assert [message.role for message in history] == ["user"]
    assert "Fill it in." in history[0].text
    visible = [message.text for message in activation.messages if message.is_visible]
    assert visible == ["The skill pdf is active: the form"]
    for wrong in ("pdf", "empty", "none"):
        with pytest.raises(UsageError):
            registry.activate(wrong, history=history)
    assert len(history) == 1
    assert [one.skill.name for one in registry.active] == ["pdf"]
    assert registry.deactivate("pdf") is activation
    with pytest.raises(UsageError, match="already"):
        registry.register(read_skill(tmp_path / "pdf", "library"))


def test_a_skill_does_without_files_in_a_folder_that_may_not_be_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = skill(tmp_path, "pdf", "Fill it in.")
    for name in ("form.txt", "locked.txt"):
        (folder / name).touch()
    looks = Path.is_file

    def is_file(path: Path) -> bool:
        if path.name == "locked.txt":
            raise PermissionError("as the system says of a file in such a folder")
        return looks(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    registry = SkillRegistry()
    registry.register(read_skill(folder, "library"))
    assert "\nform.txt\n</skill>" in registry.activate("pdf").instructions
