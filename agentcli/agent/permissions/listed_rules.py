"""Reads the paths and commands that a sentence lists, and writes permission rules for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from agentcli.agent.permissions.rules import escaped
from agentcli.safety.commands import analyse
from agentcli.safety.commands.records import Places
from agentcli.safety.commands.rules import touches

AND = r"(?:\s*,\s*(?:and|or|nor)\s+|\s*[,/]\s*|\s+(?:and|or|nor)\s+)"
_AND_THEN = re.compile(AND, re.IGNORECASE)


class Ground(NamedTuple):
    """The folder that paths begin at, and the project's, which holds it."""

    folder: Path
    root: Path


_FILLER = re.compile(
    r"(?:(?:any|all|the|a|of|files?|anything|everything|code|contents?|stuff|generated|vendored|existing|things?|in|under|"
    r"inside|within|below|our|your|folders?|director(?:y|ies))\s+)*",
    re.IGNORECASE,
)
_PATH = re.compile(r"`(?P<code>[^`]+)`|(?P<bare>[\w.@*?{}\[\]~/-]+(?:\{[^}\s]*\})?[\w.@*?~/-]*)")
_KIND = re.compile(r"\s+(?:folders?|director(?:y|ies)|dirs?|files?|tree)\b", re.IGNORECASE)


def listed_paths(text: str, start: int, ground: Ground) -> tuple[list[str], int]:
    """The paths that are listed from `start` on, and where the list ends."""
    paths: list[str] = []
    end = at = start
    while item := _PATH.match(text, filler.end() if (filler := _FILLER.match(text, at)) else at):
        path = item["code"] or item["bare"].rstrip(".,;:")
        if not _is_path(path, ground, is_code=bool(item["code"])):
            break
        paths.append(path)
        end = item.end() if item["code"] else item.start() + len(path)
        end = kind.end() if (kind := _KIND.match(text, end)) else end
        if not (more := _AND_THEN.match(text, end)):
            break
        at = more.end()
    return paths, end


def _is_path(text: str, ground: Ground, *, is_code: bool) -> bool:
    if not re.fullmatch(r"[\w.@*?{},\[\]~/-]+", text) or "://" in text or not re.search(r"\w|\*", text):
        return False
    if "/" in text.strip("*") or re.match(r"\.\w|\*\.\w", text) or (is_code and "*" in text):
        return ".." not in text.split("/")
    return _is_there(ground.folder / text) or bool(re.search(r"\w\.[a-z]{2,6}$", text))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def path_rule(path: str, ground: Ground) -> str:
    """How a rule names a path: from the project's folder where it is there, else a single name at any depth."""
    folder, root = ground.folder, ground.root
    bare = re.sub(r"(?:/\**)+$", "", path).removeprefix("./")
    if bare.startswith("~"):
        return bare
    if bare.startswith("/"):
        return bare if _is_there(root / bare[1:]) or bare.startswith(f"{root}/") else f"/{bare}"
    below = "" if folder == root else f"/{escaped(str(folder.relative_to(root)))}"
    if _is_there(folder / bare) or not _is_there(root / bare):
        is_name = "/" not in bare and not _is_there(folder / bare)
        return f"{below}/**/{bare}" if is_name else f"{below}/{bare}"
    return f"/{bare}"


PROGRAMS = frozenset(
    (
        "ansible ant apt apt-get awk aws az babel bandit bash bazel black brew bun bundle bunx cargo cat cmake "
        "composer conda cp curl deno django-admin docker docker-compose dotnet easy_install eslint find flake8 "
        "gcloud gem gh git go gradle gradlew grep gulp helm heroku isort jest just kubectl lerna make mamba maven "
        "mocha mvn mypy mysql nano ninja node nodemon nose nox npm npx nx pdm pip pip3 pipenv pipx pnpm podman "
        "poetry prettier psql pulumi pyenv pylint pyright pytest python python2 python3 rails rake rg rm rsync "
        "ruff scp sed sh ssh sudo svn tee terraform touch tox ts-node tsc turbo twine unittest uv uvx venv vercel "
        "vi vim virtualenv vitest webpack wget xargs yapf yarn zsh"
    ).split()
)
_MODULES = frozenset("pip pip3 unittest venv virtualenv easy_install nose".split())
_COMMAND = re.compile(r"`(?P<code>[^`]+)`|(?P<bare>[\w.-]+(?:[ \t]+[\w./:=@+-]+)*)")
_NO_WORD = frozenset(
    (
        "on to in into with from for against as at and or nor by via here there yourself directly manually "
        "because since so it this that these those they command commands script scripts tool tools locally "
        "anywhere ever again instead is are must should may can the a an any all please but use never not always"
    ).split()
)


def listed_commands(text: str, start: int, *, any_code: bool = False) -> tuple[list[str], int]:
    """The commands that are listed from `start` on, and where the list ends. `any_code`: also unknown ones in code."""
    commands: list[str] = []
    end = at = start
    while item := _COMMAND.match(text, at):
        if code := item["code"]:
            command, until = code.strip(), item.end()
        else:
            words = []
            for word in re.finditer(r"\S+", item["bare"]):
                if word[0].lower().rstrip(".") in _NO_WORD:
                    break
                words.append(word)
            bare = text[at : at + words[-1].end()].rstrip(".:") if words else ""
            command, until = bare, at + len(bare)
        name = (command.split() or [""])[0]
        if not (name in PROGRAMS or name.startswith("--") or (code and any_code and re.match(r"[\w./]", name))):
            break
        commands.append(command)
        end = until
        if not (more := _AND_THEN.match(text, end)):
            break
        at = more.end()
    return commands, end


_NOWHERE = Path("/workspace")
_PLACES = Places(_NOWHERE, (_NOWHERE,), Path("/home"), lambda path: False)


def command_rules(command: str, other: str = "") -> list[str]:
    """The rules about a command, without those that would mean the `other` that is to be used instead."""
    text = " ".join(re.split(r"\s*(?:[<…]|\.\.\.|\s\*$)", command)[0].split())
    name, _, rest = text.partition(" ")
    if not text or re.search(r"[|;&>()\\\"']", text):
        return []
    if name.startswith("-"):
        return [f"bash(* {escaped(text)}*)"]
    forms = [text] if name != "unittest" else []
    forms += [f"pip3 {rest}".strip()] if name == "pip" else []
    forms += [f"python3 {rest}".strip()] if name == "python" else []
    patterns = [f"{escaped(form)} *" for form in forms]
    patterns += [f"python* -m {escaped(text)} *"] if name in _MODULES else []
    before, _, last = text.rpartition(" ")
    patterns += [f"{escaped(before)} * {escaped(last)} *"] if last.startswith("-") else []  # wherever it stands
    instead = analyse(other.strip("` "), places=_PLACES).segments if other else ()
    return [f"bash({one})" for one in patterns if not any(touches(one, segment) for segment in instead)]
