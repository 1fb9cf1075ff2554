"""Text that is added to a command never makes a refusal or a question go away."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.agent.permissions.decide import decide
from agentcli.agent.permissions.facts import find_facts
from agentcli.agent.permissions.modes import MODES, Mode
from agentcli.agent.permissions.rules import Rules, parse_rule
from agentcli.safety.commands.reader.commands import read_commands
from tests.properties import examples
from tests.unit.safety.commands.desk import cases
from tests.unit.tools.bench import Bench

OPENING = [
    "rev .env",
    "cat id_rsa > x",
    "cp x .git/hooks/pre-commit",
    "cat x | tee .vscode/tasks.json",
    "dd if=x of=.git/config",
    "echo x > ~/.bashrc",
    "cp x ~/.zshrc",
    "git show HEAD:.env",
    "mv x ~",
    "base64 ~/.ssh/id_rsa",
]
# Not those that lead upwards: from another folder these are about other files.
GRAVE = [line for line in cases("block") + cases("not_allowed") if not any(mark in line for mark in ("\n", "#", ".."))]
COMMANDS = st.sampled_from([*OPENING * 20, *GRAVE])
# Whole commands, readable and not; what they say of the folder, the home and the syntax concerns the rest too.
PIECES = [
    "ls", "true", "make", "x=1", "popd", "eval true", "source x", "HOME=/x", "read HOME", "for i in 1; do :; done",
    "if true; then ls; fi", "f() { ls; }", "echo $x", "echo `ls`", "[[ -n x ]]", "(( 1 ))", "cat <(ls)", "fi",
    "shopt -s expand_aliases", "cd $x", "set -e", "a" * 300,
]  # fmt: skip
AROUND = [
    "{}; {piece}", "{piece}; {}", "{piece}\n{}", "{}\n{piece}", "{piece} && {}", "{} || {piece}", "{piece} & {}",
    "if true; then {}\nfi; {piece}", "for i in 1; do {}\ndone", "while {piece}; do {}\ndone", "( {} )", "{{ {}; }}",
    "f() {{ {}; }}; f", 'echo "$( {} )"; {piece}', "! {}", "case x in x) {} ;; esac",
]  # fmt: skip
RULES = [
    "bash",
    "bash(cp *)",
    "bash(* x *)",
    "bash(cat *)",
    "bash(git *)",
    "bash(echo *)",
    "bash(dd *)",
    "Read",
    "Edit",
]


@pytest.fixture(scope="module")
def desk() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.put(".env", "KEY=1")
        bench.put(".git/HEAD")
        bench.confine()
        yield bench


@st.composite
def longer(draw: st.DrawFn) -> tuple[str, str]:
    command = text = draw(COMMANDS)
    for form in draw(st.lists(st.sampled_from(AROUND), min_size=1, max_size=3)):
        text = form.format(text, piece=draw(st.sampled_from(PIECES)))
    return command, text + draw(st.sampled_from(["; ", "\n", " # ", " && "])) + draw(
        st.text("ab$`'\"()<>|&{}", max_size=4)
    )


@examples(400)
@given(longer(), st.lists(st.sampled_from(RULES), max_size=4), st.sampled_from(MODES))
def test_text_around_a_command_never_allows_what_it_would_not(
    desk: Bench, texts: tuple[str, str], granted: list[str], mode: Mode
) -> None:
    rules, tool = Rules([parse_rule(rule) for rule in granted]), desk.tools.get("bash")

    def decision(command: str) -> str:
        return decide(find_facts(tool, tool.parse({"command": command}), desk.workspace), mode, rules).outcome

    command, text = texts
    if (
        decision(command) in ("ask", "deny") and not read_commands(text).syntax_error
    ):  # of a syntax error bash runs nothing
        assert decision(text) != "allow", (decision(command), text)
