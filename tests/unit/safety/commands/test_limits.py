"""Hidden characters, long commands, deep ones, many of them; and how long judging takes."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.rows import each_row
from tests.unit.safety.commands.desk import judged


@each_row(
    "char",
    ["\r", "\0", "\x07", "\x1b", "\x7f", "\x85", "\x9b", "\u200b", "\u200d", "\u202e", "\u2028", "\u2066", "\ufeff",
     "\xa0", "\u3000", "\f", "\v", "\ue000", "\U000e0041", "\ud800"],
)  # fmt: skip
def test_a_character_that_is_not_shown_as_it_is_makes_a_command_unknown(char: str) -> None:
    for command in (f"ls a{char}b", f"echo {char}", f"{char}ls", f"ls{char}", f"echo '{char}'"):
        assert judged(command).verdict == "ask"
        assert f"U+{ord(char):04X}" in judged(command).problem


@pytest.mark.parametrize("text", ["é", "文件", "naïve — “quotes”", "😀", "ｒｍ"])
def test_letters_of_any_language_are_fine(text: str) -> None:
    assert judged(f"echo '{text}'").verdict == "allow"


def test_what_only_looks_like_a_blank_does_not_separate() -> None:
    for command in ("rm -rf\xa0/", "echo hi\rrm -rf ~", "echo hi\u2028rm -rf /", "rm\u3000-rf /"):
        assert judged(command).verdict == "ask"
    assert judged("echo \x07; rm -rf /").verdict == "block"


@pytest.mark.slow
def test_more_than_fifty_commands_are_unknown_and_still_refused_when_one_is_a_catastrophe() -> None:
    assert judged(";".join(["true"] * 50)).verdict == "allow"
    assert judged(";".join(["true"] * 51)).verdict == "try"
    assert judged(";".join(["true"] * 60) + "; rm -rf /").verdict == "block"
    assert judged("rm -rf /;" + ";".join(["true"] * 9_000)).verdict == "block"
    assert judged(";".join(["true"] * 9_000) + "; rm -rf /").verdict == "block"


LONG = {
    "one word": "a" * 900_000,
    "many commands": "true;" * 100_000,
    "many deletions": "rm a;" * 100_000,
    "many lines": "rm a\n" * 100_000,
    "many devices": "/dev/" * 100_000,
    "a long text": "echo '" + "x y\n" * 200_000 + "'",
    "open parentheses": "(" * 100_000,
    "open substitutions": "$(" * 60_000,
    "backquotes": "`" * 100_000,
    "nested ifs": "if true; then " * 3_000,
    "nested loops": "for i in 1 2 3 4 5 6 7 8; do " * 12 + "ls" + "; done" * 12,
    "endless loops": "while true; do " * 20 + "ls" + "; done" * 20,
    "braces": "echo " + "{a,b}" * 40,
    "nested braces": "echo " + "{a," * 3_000 + "}" * 3_000,
    "a value that doubles": "x=aaaaaaaaaa;" + "x=$x$x;" * 40 + "echo $x",
    "functions that double": "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }};" for i in range(30)) + "f0",
    "a long chain": "ls" + " && ls" * 20_000,
    "a long pipeline": "ls" + " | cat" * 20_000,
    "many variables": "echo " + "$x" * 60_000,
    "slashes in awk": "awk '" + "(a)/" * 2_000 + "' f",
    "continued lines": "ls \\\n" * 40_000,
}


NOT_TRIED = {"a long text": "allow", "slashes in awk": "allow", "continued lines": "allow", "many devices": "ask"}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_monstrous_command_is_classified_in_about_a_second(name: str) -> None:
    started = time.perf_counter()
    verdict = judged(LONG[name]).verdict
    assert time.perf_counter() - started < 60  # about 0.5 s; what grows with the square takes hours
    assert verdict == NOT_TRIED.get(name, "try")


def test_a_catastrophe_is_found_at_the_end_of_all_that_bash_takes() -> None:
    assert judged("true;" * 3_000 + "rm -rf /").verdict == "block"
    assert judged("echo hi\n" * 3_000 + "sudo rm -rf ~\n").verdict == "block"


def test_a_long_text_that_is_only_data_is_not_refused() -> None:
    text = "run rm -rf / and see\n" * 40_000
    assert judged(f"cat > notes <<'EOF'\n{text}EOF\n").verdict == "try"
    assert judged(f"cat > notes <<'EOF'\n{text[:100_000]}EOF\n").verdict == "try"


def test_nested_scripts_and_subshells_are_checked() -> None:
    command = "rm x"
    for _ in range(6):
        command = f"eval {shlex.quote('(' * 25 + command + ' ' + ') ' * 25)}"
    assert judged(command).verdict == "try"


@examples(300)
@given(st.text())
def test_no_text_makes_judging_fail(text: str) -> None:
    assert judged(text).verdict in ("allow", "try", "ask", "block")


_PIECES = st.sampled_from(
    [
        *"ls cat rm a b=1 x ; & && || | |& ( ) { } ;; if then fi for in do done".split(),
        *"while case esac else ! time < > >>".split(),
        *"2> &> <<< << E ' \" ` $( $(( )) ${x} ${x:- \\ # [[ ]] -f == (( f() function <( >( $x * ~ coproc 2>&1".split(),
        *">&- [ ] x) a=( $' sed awk jq git find xargs sh -c eval env sudo -exec {} + -delete s/a/b/ {print}".split(),
        *"test -v printf select \n".split(),
        "\n",
        "\\\n",
        " ",
        "\t",
    ]
)


@examples(400)
@given(st.lists(_PIECES, max_size=14), st.sampled_from([" ", ""]))
def test_no_mixture_of_shell_syntax_makes_judging_fail(pieces: list[str], between: str) -> None:
    assert judged(between.join(pieces)).verdict in ("allow", "try", "ask", "block")
