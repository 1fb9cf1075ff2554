"""Deny rules hold for scripts that a command gives to a shell; what cannot be read against them does not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.running import Place, call

pytestmark = pytest.mark.slow  # each test starts the program

# Each makes FILE with a TOUCH that stands in the command; its twin has an `echo` there.
READABLE = [
    "bash <<E\nTOUCH FILE\nE",
    "cat <<E | sh\nTOUCH FILE\nE",
    'bash<<<"TOUCH FILE"',
    "bash <<< 'bash <<< \"TOUCH FILE\"'",
    '. /dev/stdin <<< "TOUCH FILE"',
    "echo TOUCH FILE | sh",
    "echo TOUCH FILE | cat | timeout 5 sh",
    "echo TOUCH FILE | (cat | sh)",
    'printf "TOUCH FILE" | bash',
    "printf 'TOUCH FILE\\n' | bash -s",
    'git -c alias.x="!TOUCH FILE" x',
    'echo FILE | xargs -I{} sh -c "TOUCH {}"',
    'find . -maxdepth 0 -exec sh -c "TOUCH FILE" \\;',
    'awk "BEGIN{system(\\"TOUCH FILE\\")}"',
    'tar cf /dev/null f.txt --checkpoint=1 --checkpoint-action=exec="TOUCH FILE"',
    'mapfile -C "TOUCH FILE;" -c 1 x < f.txt',
]
# The same; but in what is not read there may be more than is seen.
SEEN = [
    "source <(echo TOUCH FILE)",
    "bash <(echo TOUCH FILE)",
    'sh -c "$(echo TOUCH FILE)"',
    'bash /dev/fd/3 3<<< "TOUCH FILE"',
]
# Each makes FILE by a script or a program that the text does not tell.
UNREADABLE = [
    "echo -e 'touch\\x20FILE' | bash",
    "{ echo -n 'touch '; echo FILE; } | sh",
    "printf '%s FILE\\n' 'touch' | sh",
    "f() { sh; }; echo touch FILE | f",
    '{ sh; } <<< "touch FILE"',
    "if true; then sh; fi <<< 'touch FILE'",
    'eval "$(cat <<< "touch FILE")"',
    'x="touch FILE"; sh <<< "$x"',
    "echo '\"touch FILE\"' | xargs -I{} sh -c {}",
    "shopt -s expand_aliases\nalias q=$(cat touch.txt)\nq FILE",
    "x=(touch); ${x[0]} FILE",
    "/usr/bin/touc? FILE",
    "tou$@ch FILE",
    "printf -v x touch; $x FILE",
    "read x <<< touch; $x FILE",
    "declare -n r=x; x=touch; $r FILE",
    "x=ls; y=x; x=touch; ${!y} FILE",
    "x=; : ${x:=touch}; $x FILE",
    'set -- echo touch FILE; shift; "$@"',
    "hash -p /usr/bin/touch q; q FILE",
    "echo touch FILE > s; sh s",
    "echo touch FILE > s; . ./s",
    "ln -s /usr/bin/touch ./q; ./q FILE",
    "tr x x <<< 'touch FILE' | sh",
    "exec <<< 'touch FILE'; sh",
    "tr x x <<< 'touch FILE' > s; sh < s",
    'read x <<< "touch FILE"; eval "$x"',
    'read x <<< "touch FILE"; sh -c "$x"',
    'read x <<< "touch FILE"; trap "$x" EXIT',
    "BASH_ENV=<(echo touch FILE) bash -c :",
    "echo touch FILE > >(sh; :); sleep 0.2",
    "let 'x[$(touch FILE)]=1'",
]
# Nothing of this is kept from running by a rule that denies another program.
HARMLESS = [
    'x=(1 2); for i in "${x[@]}"; do echo said $i; done',
    "read x <<< said; echo $x",
    "echo 'echo touch said' > s; cat s",
    "sh script.sh",
    ". ./script.sh",
    "bash -c 'echo said touch'",
    "git -c user.name='touch a' --version; echo said",
    "printf -v x said; echo $x",
]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    (place.folder / "f.txt").write_text("a line\n")
    (place.folder / "touch.txt").write_text("touch\n")
    (place.folder / "script.sh").write_text("echo said\n")
    return place


def runs(place: Place, commands: list[str], mode: str = "auto", *deny: str) -> list[tuple[str, bool, str]]:
    """Each command with whether it failed and its answer; FILE is `made-` and its number."""
    (place.folder / ".agentcli").mkdir(exist_ok=True)
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(f"[permissions]\ndeny = {json.dumps(deny)}\n")
    asked = [
        {"id": str(at), **call("bash", command=command.replace("FILE", f"made-{at}"))}
        for at, command in enumerate(commands)
    ]
    ran = place.run("tools", "run", "--permission-mode", mode, stdin="".join(json.dumps(one) + "\n" for one in asked))
    answers = {one["id"]: one for one in ran.lines}
    return [(command, answers[str(at)]["is_error"], answers[str(at)]["content"]) for at, command in enumerate(commands)]


def made(place: Place, commands: list[str]) -> list[str]:
    return [command for at, command in enumerate(commands) if (place.folder / f"made-{at}").exists()]


def with_program(program: str) -> list[str]:
    return [command.replace("TOUCH", program) for command in READABLE]


@pytest.mark.parametrize("mode", ["auto", "bypassPermissions"])
def test_a_deny_rule_holds_for_the_scripts_that_shells_are_given(place: Place, mode: str) -> None:
    commands = [*with_program("touch"), *(command.replace("TOUCH", "touch") for command in SEEN)]
    answers = runs(place, commands, mode, "Bash(touch *)")
    assert [command for command, _, content in answers if "bash(touch *)" not in content] == []
    assert [command for command, is_error, _ in answers if not is_error] == []
    assert made(place, commands) == []


@pytest.mark.parametrize("mode", ["auto", "bypassPermissions"])
def test_what_cannot_be_read_against_deny_rules_does_not_run_unasked(place: Place, mode: str) -> None:
    answers = runs(place, UNREADABLE, mode, "Bash(touch *)")
    assert [command for command, _, content in answers if "so deny rules such as" not in content] == []
    assert made(place, UNREADABLE) == []


@pytest.mark.full
def test_without_denials_everything_runs(place: Place) -> None:
    commands = [*with_program("touch"), *UNREADABLE]
    runs(place, commands)
    assert set(commands) - set(made(place, commands)) == set()


def test_a_deny_rule_leaves_other_scripts_alone(place: Place) -> None:
    twins = with_program("echo said")
    answers = runs(place, [*twins, *HARMLESS], "auto", "Bash(touch *)")
    assert [answer for answer in answers if answer[1] or "said" not in answer[2]] == []


@pytest.mark.parametrize("mode", ["auto", "bypassPermissions"])
def test_no_mode_runs_a_catastrophe_in_a_script_unasked(place: Place, mode: str) -> None:
    answers = runs(place, ["bash <<< 'rm -rf /'", "echo 'rm -rf /' | sh", "source <(echo rm -rf /)"], mode)
    assert [answer for answer in answers if "would be refused" not in answer[2]] == []


def test_a_rule_about_files_holds_for_the_scripts_that_shells_are_given(place: Place) -> None:
    answers = runs(place, ["bash <<< 'cat f.txt'", "bash <<< 'cat script.sh'"], "auto", "Read(f.txt)")
    # Where no sandbox hides a file that is denied, the second one is asked about; that is no rule that holds for it.
    assert ["f.txt) denies" in answer for _, _, answer in answers] == [True, False], answers
