"""A permission rule that can never hold is an error where it is read, whoever wrote it."""

from __future__ import annotations

import json

import pytest

from tests.app.running import Place, call

pytestmark = pytest.mark.slow  # each test starts the program

SAID = {"text": "Hello."}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("Bsh(git push *)", "did you mean Bash?"),
        ("FILE_READ", "did you mean file_read?"),
        ("fle_*", "Choose one of file_read, "),
        ("NotebookEdti", "unknown tool 'NotebookEdti'. Choose one of "),
        ("mcp__", "mcp__SERVER__TOOL"),
        ("mcp__github__push(main)", "write mcp__github__push"),
        ("think(hm)", "write think"),
        ("WebSearch(domain:example.org)", "write web_search"),
        ("WebFetch(https://example.org/*)", "web_fetch(domain:example.org)"),
        ("WebFetch(*)", "web_fetch(domain:example.org)"),
        ("WebFetch(domain:exa*.org)", "web_fetch takes a host"),
        ("WebFetch(domain:example.org:80)", "web_fetch takes a host"),
        ("WebFetch(domain:)", "web_fetch takes a host"),
        ("Read(domain:example.org)", "file_read takes a path"),
        ("Bash(domain:example.org)", "bash takes a command"),
        ("Read(../secrets/**)", "file_read takes a path without .."),
        ("Edit([z-a].py)", "file_edit takes a path"),
        ("Bash()", "is not a permission rule"),
        ("Bash(git push", "is not a permission rule"),
        ("Bash(\n)", "is not a permission rule"),
        ("Read(./x:*)", "Read(./x:*): file_read takes a path"),
        ('Read("./x")', "file_read takes a path"),
        ("Read('x')", "file_read takes a path"),
        ("Read(file:x)", "file_read takes a path"),
        ("Read(~ann/x)", "file_read takes a path"),
        ("Read($HOME/x)", "file_read takes a path"),
        (r"Read(C:\x)", "file_read takes a path"),
    ],
)
@pytest.mark.parametrize("flag", ["--allow", "--deny"])
def test_a_flag_s_rule_that_can_never_hold_is_refused(place: Place, flag: str, rule: str, says: str) -> None:
    ran = place.run("-p", "go", "-m", place.script(SAID), flag, rule)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"agentcli: command line: {flag} (permissions.{flag[2:]}): ")
    assert says in ran.err


@pytest.mark.parametrize(
    ("rule", "command"),
    [
        ("bash(curl * | sh)", "curl x | sh"),
        ("bash(make && rm *)", "make && rm x"),
        ("bash(git commit -m it's *)", 'git commit -m "it\'s me"'),
        ("bash(echo 'a *)", "echo 'a b'"),
        ("bash(grep a|b *)", "grep 'a|b' x"),
        ("bash(for f in *)", "for f in x; do rm $f; done"),
        ("bash(*; done)", "for f in x; do rm $f; done"),
        ("bash(* )*)", "(rm x )"),
        ("bash(find * ;)", r"find . -exec rm {} \;"),
        (r"bash(* \|)", r"cut -d \|"),
        ("bash(rm x &)", "rm x &"),
        ("bash(rm\nx)", "rm x"),
    ],
)
def test_a_refusal_that_speaks_of_a_command_is_taken_and_holds(place: Place, rule: str, command: str) -> None:
    said = place.run("permissions", "explain", command, env={"AGENTCLI_PERMISSIONS_DENY": rule})
    assert said.err == ""
    assert said.out.startswith(f"block: the rule {rule} denies it")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "rule",
    [
        "bash(git push *)",
        "Bash(npm run test:*)",
        "bash(*)",
        "bash(timeout * make *)",
        "bash(NODE_ENV=test npm *)",
        "bash(grep a|b *)",
        "bash(make && make test)",
        "file_*(src/**)",
        "Read(~)",
        "Read(//etc/**)",
        "Read(src//./x)",
        "WebFetch(domain:*.example.org)",
        "WebFetch(domain:bücher.example)",
        "jobs",
        "Task",
        "skill",
        "ask_user",
        "Skill(pdf)",
        "AskUserQuestion",
    ],
)
def test_a_rule_that_can_hold_is_taken_in_silence(place: Place, rule: str) -> None:
    ran = place.run("-p", "go", "-m", place.script(SAID), "--allow", rule)
    assert (ran.code, ran.out, ran.err) == (0, "Hello.\n", "")


@pytest.mark.parametrize("rule", ["mcp__github", "mcp__github__*", "mcp__github__push", "mcp__*"])
def test_a_rule_for_a_tool_that_may_come_is_a_warning(place: Place, rule: str) -> None:
    ran = place.run("-p", "go", "-m", place.script(SAID), "--deny", rule)
    assert (ran.code, ran.out) == (0, "Hello.\n")
    assert "command line: --deny (permissions.deny): " in ran.err
    assert " yet." in ran.err


@pytest.mark.parametrize("rule", ["NotebookEdit", "ExitPlanMode", "SlashCommand"])
@pytest.mark.parametrize("flag", ["--allow", "--deny"])
def test_a_rule_for_a_tool_that_only_others_have_is_a_warning(place: Place, rule: str, flag: str) -> None:
    ran = place.run("-p", "go", "-m", place.script(SAID), flag, rule)
    assert (ran.code, ran.out) == (0, "Hello.\n")
    assert "has no counterpart to" in ran.err


@pytest.mark.parametrize(
    ("rule", "tool", "input"),
    [
        ("TodoWrite", "todo", {"items": []}),
        ("MultiEdit", "file_edit", {"path": "a", "old_string": "a", "new_string": "b"}),
        ("MultiEdit(src/**)", "file_edit", {"path": "src/a", "old_string": "a", "new_string": "b"}),
        ("LS", "file_list", {}),
        ("KillShell", "jobs", {"action": "list"}),
        ("BashOutput", "jobs", {"action": "list"}),
    ],
)
def test_a_name_of_the_field_s_refuses_the_tool_here(
    place: Place, rule: str, tool: str, input: dict[str, object]
) -> None:
    (place.folder / "src").mkdir()
    for name in ("a", "src/a"):
        (place.folder / name).write_text("a\n")
    calls = {"tool_calls": [{"name": tool, "input": input}]}
    ran = place.run("-p", "go", "-m", place.script(calls, SAID), "--deny", rule, "--output-format", "json")
    assert (ran.code, ran.err) == (0, "")
    assert [denied["tool_name"] for denied in ran.result["permission_denials"]] == [tool]


@pytest.mark.parametrize("name", ["px", "bash_two"])
def test_a_rule_holds_for_a_tool_that_the_client_brings(place: Place, name: str) -> None:
    asks = {"tool_calls": [{"name": name, "input": {}}]}
    tool = {"name": name, "description": "Does it.", "input_schema": {"type": "object"}}
    with place.talk(place.script(asks, SAID), "--deny", name) as running:
        running.control("client_tools", tools=[tool])
        running.say("go")
        ran = running.ended()
    assert ran.code == 0
    assert ran.of("system", "client_tool_requested") == []
    assert [denied["tool_name"] for denied in ran.result["permission_denials"]] == [name]
    assert f"there is no tool {name} yet" in ran.err


@pytest.mark.parametrize("verb", ["allow", "ask", "deny"])
@pytest.mark.parametrize("form", ["config.toml", "settings.toml", "settings.json", "variable"])
def test_a_rule_of_the_settings_is_refused_with_its_place(place: Place, verb: str, form: str) -> None:
    rules = ["bash(git status)", "Bsh(git push *)"]
    file, flags, env = place.folder.parent / form, ["--settings", str(place.folder.parent / form)], {}
    if form == "variable":
        expected, flags = f"environment: AGENTCLI_PERMISSIONS_{verb.upper()}", []
        env = {f"AGENTCLI_PERMISSIONS_{verb.upper()}": ",".join(rules)}
    elif form.endswith(".json"):
        file.write_text(json.dumps({"permissions": {"mode": "plan", verb: rules}}, indent=1))
        expected = f"{file}: permissions.{verb}"
    else:
        file = place.home / form if form == "config.toml" else file
        file.parent.mkdir(exist_ok=True)
        flags = [] if form == "config.toml" else flags
        file.write_text(f'[permissions]\nmode = "plan"\n{verb} = [\n  "{rules[0]}",\n  "{rules[1]}",\n]\n')
        expected = f"{file}, line 5: permissions.{verb}"
    ran = place.run("-p", "go", "-m", place.script(SAID), *flags, env=env)
    assert ran.code == 2
    assert ran.err.startswith(f"agentcli: {expected}: Bsh(git push *): unknown tool 'Bsh' (did you mean Bash?)")


def test_other_commands_refuse_it_too(place: Place) -> None:
    env = {"AGENTCLI_PERMISSIONS_DENY": "Bsh(git push *)"}
    for command in (["permissions", "explain", "git push"], ["tools", "run", "think", '{"thought": "hm"}']):
        ran = place.run(*command, env=env)
        assert (ran.code, ran.out) == (2, "")
        assert "AGENTCLI_PERMISSIONS_DENY: Bsh(git push *)" in ran.err


def test_a_lasting_grant_that_makes_no_sense_is_reported_and_left_out(place: Place) -> None:
    grants = place.home / "state" / "grants.json"
    grants.parent.mkdir(parents=True)
    grants.write_text(json.dumps({str(place.folder): ["Bsh(git push *)", "a b", "bash(touch made)"]}))
    script = place.script({"tool_calls": [call("bash", command="touch made")]}, SAID)
    ran = place.run("-p", "go", "-m", script)
    assert ran.code == 0
    assert (place.folder / "made").exists()
    assert ran.err.count(f"{grants}: ") == 2
    assert "did you mean Bash?" in ran.err


def test_a_lasting_refusal_of_an_earlier_version_holds_until_it_is_forgotten(place: Place) -> None:
    grants = place.home / "state" / "grants.json"
    grants.parent.mkdir(parents=True)
    refusal = {"verb": "deny", "rule": "bash(pip *)", "quote": 'AGENTS.md says: "Use uv."'}
    grants.write_text(json.dumps({str(place.folder): [refusal]}))
    explained = place.run("permissions", "explain", "cd . && pip install x")
    assert 'the rule bash(pip *) (AGENTS.md says: "Use uv.") denies it' in explained.out
    said = place.run("-m", place.script(SAID), "-p", "/permissions forget bash(pip *)")
    assert said.out == "Rule removed: bash(pip *).\n"
    assert json.loads(grants.read_text()) == {}


@pytest.mark.parametrize("names", ["tools.only", "tools.output_levels"])
def test_a_tool_that_does_not_exist_is_refused_in_other_settings_too(place: Place, names: str) -> None:
    key = names.partition(".")[2]
    value = '["bash", "bsh"]' if key == "only" else '{ bsh = "full" }'
    (place.home).mkdir()
    (place.home / "config.toml").write_text(f"[tools]\n{key} = {value}\n")
    ran = place.run("-p", "go", "-m", place.script(SAID))
    assert ran.code == 2
    said = f"config.toml, line 2: {names}: Unknown tool 'bsh' (did you mean bash?). Choose one of file_read, "
    assert said in ran.err


def test_a_rule_that_asks_holds_for_a_tool_without_effects(place: Place) -> None:
    script = place.script({"tool_calls": [call("think", thought="hm")]}, {"text": "{{last_result}}"})
    ran = place.run("-p", "go", "-m", script, env={"AGENTCLI_PERMISSIONS_ASK": "think"})
    assert "the rule think requires approval, and no one can approve it" in ran.out


@pytest.mark.parametrize("path", ["a.txt", "x.txt", "{a,x}.txt"])
def test_braces_in_a_path_are_either(place: Place, path: str) -> None:
    (place.folder / path).write_text("precious")
    read = {"tool_calls": [{"name": "file_read", "input": {"path": path}}]}
    ran = place.run("-p", "go", "-m", place.script(read, {"text": "{{last_result}}"}), "--deny", "Read({a,x}.txt)")
    assert "precious" not in ran.out


def test_a_host_that_is_none_cannot_be_opened(place: Place) -> None:
    ran = place.run("-p", "/sandbox host ftp://x", "-m", place.script(SAID))
    assert ran.code == 2
    assert "Could not allow 'ftp://x': " in ran.err
    assert ".." not in ran.err


def test_the_reason_for_a_denied_connection_is_read_though_the_program_does_not_print_it(place: Place) -> None:
    (place.home).mkdir(exist_ok=True)
    (place.home / "config.toml").write_text('[sandbox]\nhosts = ["example.net"]\n')
    command = {"tool_calls": [call("bash", command="curl -sS https://example.org | head -n3")]}
    model = place.script(command, {"text": "{{last_result}}"})
    ran = place.run("-p", "go", "-m", model, "--permission-mode", "bypassPermissions")
    assert (
        "[the sandbox's proxy: host example.org is not granted. The user can grant it: /sandbox host example.org"
        in (ran.out)
    ), ran
