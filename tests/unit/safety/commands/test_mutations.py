"""Changes that leave a command as dangerous as it was never make it look harmless."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.unit.safety.commands.desk import cases, judged, with_verdicts


def _is_one_line(command: str) -> bool:
    return "\n" not in command and "#" not in command and not command.endswith(("&", "\\"))


_CATASTROPHES = [command for command in cases("block") if _is_one_line(command)]
_HARMLESS = [command for command in cases("allow") if _is_one_line(command)]


@cache
def _unknown() -> list[str]:
    """CallFacts when the first test asks, not by each process that collects this file."""
    commands = [command for _, command in with_verdicts(cases("not_allowed")) if _is_one_line(command)]
    return [command for command in commands if judged(command).problem == "" and judged(command).segments]


_AROUND = st.sampled_from(
    [
        "ls; {}",
        "{} && ls",
        "ls || {}",
        "ls | cat; {}",
        "( {} )",
        "{{ {}; }}",
        "if true; then {}\nfi",
        "for i in 1; do {}\ndone",
        "while true; do {}\ndone",
        "f() {{ {}; }}; f",
        "ls\n{}",
        "\t{}  ",
        "! ls; {}",
        'echo "$( {} )"',
        "case x in x) {} ;; esac",
    ]
)


def _in_shell(command: str) -> str:
    quoted = command.replace("'", "'\\''")
    return f"sh -c '{quoted}'"


@examples(400)
@given(st.sampled_from(_CATASTROPHES), st.lists(_AROUND, max_size=3), st.booleans())
def test_a_catastrophe_stays_one_inside_other_commands(command: str, around: list[str], in_shell: bool) -> None:
    for form in around:
        command = form.format(command)
    assert judged(_in_shell(command) if in_shell else command).verdict == "block"


@examples(400)
@given(st.deferred(lambda: st.sampled_from(_unknown())), st.lists(_AROUND, max_size=3), st.booleans())
def test_an_unknown_command_keeps_its_verdict_inside_others(command: str, around: list[str], in_shell: bool) -> None:
    alone = judged(command).verdict
    for form in around:
        command = form.format(command)
    assert judged(_in_shell(command) if in_shell else command).verdict == alone


def _wrapped(word: str, how: str) -> str:
    return {
        "single": f"'{word}'",
        "double": f'"{word}"',
        "empty": f"{word[:1]}''{word[1:]}",
        "escaped": f"\\{word}",
        "continued": f"{word[:1]}\\\n{word[1:]}",
        "ansi": "$'" + "".join(f"\\x{ord(char):02x}" for char in word) + "'",
        "octal": "$'" + "".join(f"\\{ord(char):03o}" for char in word) + "'",
        "plain": word,
    }[how]


_QUOTING = st.sampled_from(["single", "double", "empty", "escaped", "ansi", "octal", "plain"])
_WRAPPERS = st.lists(
    st.sampled_from(
        ["sudo", "sudo -u root", "env", "env A=1", "nice -n 5", "nohup", "timeout 5", "time -p", "command", "exec",
         "stdbuf -oL", "setsid", "ionice -c3", "busybox", "xargs", "doas", "builtin command", "\\time", "strace -f"]
    ),
    max_size=3,
)  # fmt: skip


@examples(400)
@given(
    st.sampled_from([["rm", "-rf", "/"], ["rm", "-r", "-f", "/etc"], ["chmod", "-R", "777", "/"], ["mv", "/usr", "x"]]),
    st.lists(_QUOTING, min_size=4, max_size=4),
    _WRAPPERS,
)
def test_quotes_and_wrappers_do_not_hide_a_catastrophe(words: list[str], how: list[str], wrappers: list[str]) -> None:
    command = " ".join([*wrappers, *(_wrapped(word, how_) for word, how_ in zip(words, how, strict=False))])
    assert judged(command).verdict == "block"


def test_a_catastrophe_stays_one_over_two_lines() -> None:
    assert judged("r\\\nm -rf /").verdict == "block"
    assert judged("rm -r\\\nf \\\n/").verdict == "block"


@examples(300)
@given(st.sampled_from(_HARMLESS), st.sampled_from([" && ", "; ", " | ", " || ", "\n", " & "]))
def test_a_harmless_command_does_not_lend_its_verdict(command: str, operator: str) -> None:
    assert judged(f"{command}{operator}rm -rf x").verdict == "try"
    assert judged(f"{command}{operator}rm -rf /").verdict == "block"


@examples(300)
@given(st.sampled_from(_HARMLESS), st.sampled_from(_HARMLESS), st.sampled_from([" && ", "; ", " || ", "\n"]))
def test_harmless_commands_stay_so_side_by_side(one: str, other: str, operator: str) -> None:
    # What one leaves behind (a variable, a folder) may leave open what the other does; and the forgiving reader takes
    # `[ 1 ] && x 2>y` with another `[` on the next line for a single condition, so that the two readers disagree.
    if not one.startswith(("cd", "x=", "f=", "name=", "set")) and not (operator == "\n" and other.startswith("[ ")):
        assert judged(f"{one} 2>/dev/null{operator}{other}").verdict == judged(f"true{operator}{other}").verdict
