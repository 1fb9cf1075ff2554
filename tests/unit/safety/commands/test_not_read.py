"""What the reader does not read is never allowed, never granted and never suggested; what is seen in it is judged."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from agentcli.safety.commands.reader.commands import read_commands
from agentcli.safety.commands.records import covers, restricts, rules_by_segment
from tests.rows import each_row
from tests.unit.safety.commands.desk import judged

BASH = shutil.which("bash")

# Forms of bash in which a command stands; none of them is read.
FORMS = [
    "for x in a b; do {}; done",
    "for ((i=0; i<3; i++)); do {}; done",
    "while true; do {}; done",
    "until false\ndo {}\ndone",
    "if {}; then :; fi",
    "if true; then ({}) else :; fi",
    "if [[ a < b ]]; then {}; fi 2>/dev/null",
    "case x in x) {} ;; esac",
    "case x in (a|b) {} ;; *) ls; esac",
    "echo $(case x in x) {} ;; esac)",
    "select x in a; do {}; done",
    "{{ {}; }}",
    "{{ ({}) }}",
    "f() {{ {}; }}; f",
    "function f {{ {}; }}; f",
    "f() ( {} )",
    "coproc {}",
    "coproc X {{ {}; }}",
    "x=1; {}",
    "x=(a b); {}",
    "declare x=(a b); {}",
    "echo $x; {}",
    "echo ${{x:-$({})}}",
    'echo "${{x%/*}}" && {}',
    "echo $((1+$({})))",
    "((i=1<<2)); {}",
    "((i++)) || {}",
    "[[ -f a && a =~ ^(a|b)$ ]] && {}",
    "echo `{}`",
    "cat <({})",
    "tee >({})",
    "echo {{a,b}}; {}",
    "cat <<E\n$({})\nE",
    "cat <<E; {}\n$x\nE",
    "{{fd}}>/dev/null {}",
    'echo $"a"; {}',
    "echo ~x; {}",
    "l\\\ns; {}",
    "time ({})",
]


@each_row("form", FORMS)
def test_a_command_is_seen_wherever_it_occurs(form: str) -> None:
    assert judged(form.format("rm -rf /")).verdict == "block"
    for command in ("ls", "rm x"):
        analysis = judged(form.format(command))
        assert analysis.verdict == "try"
        assert analysis.problem
        assert rules_by_segment(analysis) == ()
    assert any(restricts("rm *", segment) for segment in judged(form.format("rm x")).segments)
    assert judged(form.format("cat /etc/shadow")).verdict == "ask"


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
@pytest.mark.parametrize("form", FORMS)
def test_bash_takes_these_forms(form: str) -> None:
    command = [str(BASH), "--noprofile", "--norc", "-n", "-c", form.format("ls")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert not read_commands(form.format("ls")).syntax_error


@each_row(
    "command",
    [
        "cat$IFS/etc/x",
        "c${x}at a",
        "$'c'$x a",
        "ls $'\\0'",
        "ls $'\\cA'",
        "ls {a..c}",
        "ls a{b,c}d",
        "ls [a\\-z]",
        "echo a=~/x",
        "ls ~+",
        "x=ls; $x",
        "shopt -s extglob\nls !(a)",
        "ls \\\n&\\\n& pwd",
        "echo a &\\\n& pwd",
        "cat <<E\nhi\n",
        "cat <<E $(ls\n)\nE",
        "(ls) ls",
        "ls (a)",
        "ls )",
        "ls ;; pwd",
        "ls |",
        "ls & & pwd",
        "echo hi >",
        "echo 'a",
        'echo "a',
        "echo `a",
        "echo $(a",
        "sh -c 'ls $x'",
        "eval 'for f in a; do ls; done'",
        "fi",
        "! { ls; }",
        "a[1]=x ls",
        "x+=1 ls",
        "((",
        "$((",
        "echo $[1+1]",
        "cat <<-$x\na\n$x",
    ],
)
def test_only_surely_static_words_are_read(command: str) -> None:
    analysis = judged(command)
    assert analysis.verdict == "try"
    assert analysis.problem


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cat 'a b' \"c d\" $'e\\tf' g\\ h", ("cat", "a b", "c d", "e\tf", "g h")),
        ("c'a't a\"b\"c", ("cat", "abc")),
        ("ls ~/x $HOME/y \"${HOME}/z\"", ("ls", "/home/u/x", "/home/u/y", "/home/u/z")),
        ("ls $PWD/a \"${PWD}\"/b '~' \"~\" \\~", ("ls", "/ws/a", "/ws/b", "~", "~", "~")),
        ("grep \"it's\" \\\n  a # and no more", ("grep", "it's", "a")),
        ("echo {} a{0} {a} '{a,b}' a#b !x", ("echo", "{}", "a{0}", "{a}", "{a,b}", "a#b", "!x")),
        ("echo \"\\$x \\`y\\` \\\" \\\\ \\n\"", ("echo", "$x `y` \" \\ \\n")),
        ("ls 2>/dev/null a 1>&2", ("ls", "a")),
        ("echo 文件 é", ("echo", "文件", "é")),
    ],
)  # fmt: skip
def test_static_words_are_what_bash_makes_of_them(command: str, words: tuple[str, ...]) -> None:
    analysis = judged(command)
    assert analysis.problem == ""
    assert analysis.segments[0].words == words


@pytest.mark.parametrize(
    ("expected", "command"),
    [
        ("try", "git commit -m \"$(cat <<'EOF'\nfix: it's $5 `now`\n\nEOF\n)\""),
        ("allow", "cat <<'A' <<\"B\"\nrm -rf /\nA\n$x\nB"),
        ("allow", "cat <<-E\n\trm -rf /\n\tE\nls"),
        ("try", "cat > a <<E\nno here? rm -rf /\nE"),
        ("try", "(cd src && ls) | wc -l > out"),
        ("allow", "! grep -q x a && echo no"),
        ("try", "make & make test"),
        ("try", "FOO=1 make 2>&1 | tee log"),
        ("try", "make; echo $?"),
    ],
)
def test_what_people_write_is_read(expected: str, command: str) -> None:
    analysis = judged(command)
    assert analysis.problem == ""
    assert analysis.verdict == expected
    assert all(covers("*", segment) or segment.verdict == "allow" or ">" in command for segment in analysis.segments)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ('for f in *; do rm "$f"; done', "agentcli can't predict what rm changes"),
        ('x=a; rm -rf "$x"', "agentcli can't predict what rm changes"),
        ("x=rm; $x -rf /", "agentcli can't predict what it runs on a system folder"),
        ("chmod -R 0 $x", "agentcli can't predict what chmod changes"),
        ("find $x -delete", "agentcli can't predict what find changes"),
        ("echo $x; rm a", ""),
        ("ls | xargs rm", ""),
    ],
)
def test_a_deletion_whose_words_are_not_static_is_reported(command: str, why: str) -> None:
    assert judged(command).deletes_unseen == why


@each_row(
    "command, verdict",
    [
        ("make", "try"),
        ("npm test", "try"),
        ("npm install", "ask"),
        ("npm --prefix web ci", "ask"),
        ("npm uninstall -g x", "ask"),
        ("python3 -m pip install x", "ask"),
        ("python3 -m pytest", "try"),
        ("go build ./...", "try"),
        ("go mod download", "ask"),
        ("git commit -m x", "try"),
        ("git -C src push", "ask"),
        ("git clone x", "ask"),
        ("docker build .", "ask"),
        ("find . -exec sudo rm {} +", "ask"),
        ("ls | xargs curl", "ask"),
        ("timeout 5 ssh h", "ask"),
        ("make DESTDIR=/usr/local install", "ask"),
        ("gcc -I/usr/include a.c", "ask"),
        ("cp a ../b", "ask"),
        ("python3 x.py .env", "ask"),
        ("python3 -c 'open(\"/etc/passwd\")'", "ask"),
        ("sed -i 's#/usr/bin#x#' a", "try"),
        ("sed -n 'w /etc/x' a", "ask"),
        ("git commit -m 'see ../x'", "try"),
        ("make > /dev/null 2>&1", "try"),
        ("printenv", "ask"),
        ("echo $GITHUB_TOKEN", "ask"),
        ("cd /tmp && make", "ask"),
        ("for d in /etc /var; do ls $d; done", "ask"),
        ("/opt/x/run", "ask"),
        ("/usr/bin/make", "try"),
        ("npx tsc --noEmit", "try"),
        ("npx -y eslint .", "try"),
        ("npx --no-install x", "try"),
        ("pnpm exec vitest run", "try"),
        ("npx create-react-app x", "ask"),
        ("npx tsc@latest", "ask"),
        ("npx --package=x tsc", "ask"),
        ("npx -p x --no-install tsc", "ask"),
        ("npx --no-install --package x y", "ask"),
        ("npx eslint /etc", "ask"),
        ("npx", "ask"),
        ("npm exec tsc", "ask"),
        ("pnpm dlx x", "ask"),
        ("pnpm exec curl https://x.test", "ask"),
        ("yarn exec git push", "ask"),
        ("./run.sh", "try"),
    ],
)
def test_what_is_known_to_reach_further_asks_and_the_rest_runs_as_a_dry_run(command: str, verdict: str) -> None:
    assert judged(command).verdict == verdict
