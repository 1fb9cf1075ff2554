"""Finds programs and program texts that hand a shell to another machine or fork without end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from agentcli.safety.commands.reader.syntax import Field, State

REVERSE_SHELL = "it hands the shell to another machine"
_CLIENTS = frozenset("nc ncat netcat nc.traditional nc.openbsd telnet socat openssl ztcp".split())
_SHELLS = frozenset("sh bash dash zsh ksh ash".split())
_BEFORE = frozenset("sudo doas exec nohup command env time setsid busybox".split())
_SHELL = r"(?<![.\w-])(ba|z|k|da|a|c|tc)?sh\b(?![.\w-])|cmd\.exe|\bpowershell\b"


def traits_of(fields: Sequence[Field], *, reads_script: bool, evaluates: bool, connects: bool) -> set[str]:
    """The parts of a reverse shell that a command contributes. `connects`: it redirects to another machine."""
    name = fields[0].text.rpartition("/")[2] if fields and fields[0].is_known else ""
    found = {
        "shell": reads_script,
        "runs what it reads": evaluates or (bool(fields) and not name),
        "client": name in _CLIENTS,
        "fifo": name in ("mkfifo", "mknod"),
        "connects": connects,
    }
    return {trait for trait, is_there in found.items() if is_there}


def makes_reverse_shell(traits: set[str]) -> bool:
    """True for a connection and a shell that is fed by something, or both joined by a named pipe."""
    is_fed = "connects" in traits and bool(traits & {"shell", "runs what it reads"})
    return is_fed or {"fifo", "shell", "client"} <= traits


def pipes_reverse_shell(pipeline: Sequence[Sequence[Field]]) -> bool:
    """True if a shell that reads its commands from a pipe answers to another machine."""
    names = [_last_program(fields) for fields in pipeline]
    return "shell" in names and any(name in _CLIENTS for name in names[names.index("shell") + 1 :])


def _last_program(fields: Sequence[Field]) -> str:
    """The program behind simple wrappers; "shell" for a shell that reads its commands from its input."""
    words = [field.text.rpartition("/")[2] for field in fields]
    while len(words) > 1 and words[0] in _BEFORE:
        words = words[1:]
    is_shell = words and words[0] in _SHELLS and all(re.match(r"-[^c]*$", word) for word in words[1:])
    return "shell" if is_shell else words[0] if words else ""


# A function that starts itself twice in a pipeline, or in the background, with nothing else as arguments.
FORK_BOMB = (
    r"(?:^|[\s;&|({])(?:function\s+)?(?P<f>[^\s(){};&|]+)\s*(?:\(\s*\)|(?<=\w)\s)\s*[{(](?:[^}]*[\s;&|({])?"
    r"(?P=f)(?:\s+\$[@*]|\s+\"\$@\")?\s*(?:&(?!&)|\|\s*(?P=f)\b|\|\s*(?P=f)\s*&)"
)
_EXECUTES = re.compile(r"(?P<how>-[A-Za-z]*?[ec]|--(sh-|lua-)?exec=?)(?P<program>.*)", re.DOTALL)


def _netcat(arguments: Sequence[Field], state: State) -> str:
    """`nc -e`, `nc -c`, `ncat --exec`: a connection with a shell, or what may be one, at its end."""
    for field, follower in itertools.zip_longest(arguments, arguments[1:], fillvalue=Field("")):
        if not (found := _EXECUTES.fullmatch(field.text)):
            continue
        is_hidden = not follower.is_known and not found["how"].endswith("c")  # in some versions `-c` means encryption
        if is_hidden or re.search(_SHELL, found["program"]) or re.search(_SHELL, follower.text):
            return REVERSE_SHELL
    return ""


def _socat(arguments: Sequence[Field], state: State) -> str:
    runs = any(re.match(r"(exec|system|shell):", field.text, re.IGNORECASE) for field in arguments)
    remote = any(re.match(r"(tcp|udp|openssl|ssl|sctp|socks)", field.text, re.IGNORECASE) for field in arguments)
    return REVERSE_SHELL if runs and remote else ""


_CONNECTS = (
    r"\bTCP(Socket|Server)\b|\bIO::Socket::|\bSocket\.tcp|fsockopen|socket_client|\bopen_connection\b"
    r"|\bnet\.Socket|\bnet\.connect|createConnection|/inet/(tcp|udp)|/dev/(tcp|udp)/"
    r"|\b[sS]ocket\b(?s:.*)\b(connect(_ex)?|create_connection|accept)\b"
)
_HANDS_OVER = rf"\bdup2\b|pty\.spawn|\bSTD(IN|OUT)\s*->\s*fdopen|open\s*\(\s*STD(IN|OUT)|{_SHELL}"
_RUNS_WHAT_IT_TAKES = (
    r"\b(popen|system|shell_exec|passthru|exec\w*|spawn\w*|run|call|check_output|getoutput|Popen|eval)\b"
    r"(?s:.*)\b(recv\w*|f?gets|fread|readline)\b|\b(recv\w*|f?gets|fread|readline|getline)\b(?s:.*)"
    r"(\b(popen|system|shell_exec|exec\w*|spawn\w*|run|call|check_output|getoutput|Popen|eval)\b|\|&?\s*getline)"
)
_FORKS = (
    r"\bfork\s+while\s+(1\b|fork\b|true\b)|\bfork\s*\(?\)?\s*while\s+(1|fork|true)|while\s*\(?\s*(1|True|true)\s*\)?\s*[:{]?\s*"
    r"(do\s*)?(os\.|posix\.|pcntl_)?fork\b|\bloop\s*\{\s*fork\b|\bfork\s+until\b"
)
_QUOTED = (
    r"(?P<runs>\b(?:exec|eval)[\s(]*)?(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"  # what exec and eval get is code
)


def _interpreter(arguments: Sequence[Field], state: State) -> str:
    """A program text that connects and hands over a shell or runs what it is sent, or forks without end."""
    for text in (field.text for field in arguments):
        hands_over = re.search(_HANDS_OVER, text) or re.search(_RUNS_WHAT_IT_TAKES, text)
        if re.search(r"[(\s]", text) and re.search(_CONNECTS, text) and hands_over:
            return REVERSE_SHELL
        if re.search(_FORKS, re.sub(_QUOTED, lambda found: found[0] if found["runs"] else "''", text)):
            return "it is a fork bomb"
    return ""


_INTERPRETERS = (
    "python python2 python3 pypy pypy3 perl ruby php node nodejs deno bun lua luajit awk gawk mawk tclsh expect"
)
# By program.
HANDING_OVER: dict[str, Callable[[Sequence[Field], State], str]] = {
    **dict.fromkeys(("nc", "ncat", "netcat", "nc.traditional", "nc.openbsd"), _netcat),
    "socat": _socat,
    **dict.fromkeys(_INTERPRETERS.split(), _interpreter),
}
