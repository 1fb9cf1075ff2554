"""The quick judgement of many files says what the full one says of each."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from agentcli.infra.sandbox.secret_files import SecretFiles
from agentcli.safety.paths.judge import SECRET_GLOB_EXCEPTIONS, SECRET_GLOBS, SECRET_HOME_PATHS, is_secret

HOME = Path("/home/u")


def names(dice: random.Random) -> str:
    """A name: harmless, out of the rules, or almost so."""
    name = dice.choice(
        (
            dice.choice(("a.py", "src", "README.md", "key", "env", "x", "config", "token", "ünï", "a\nb")),
            dice.choice(SECRET_GLOBS),
            dice.choice(SECRET_GLOB_EXCEPTIONS),
            dice.choice(dice.choice(SECRET_HOME_PATHS).split("/")),
            dice.choice(("proc", "environ", "1", "run", "secrets", "var")),
            dice.choice(("ENV~1", "GITCRE~1", "ＩＤ_rsa", "id_rsa\u200b", ".env::$DATA", ".env. ", "\udce9.pem")),
        )
    )
    name = name.replace("[-_]", dice.choice("-_")).replace("?", "x").replace("*", dice.choice(("", "x", "x.y", ".")))
    name = dice.choice((str.upper, str.title, str, str))(name) + dice.choice(("", "", "", ".", " ", "x", ".pub", "~"))
    return name.replace("/", "") or "x"


def path(dice: random.Random) -> str:
    parts = dice.choice(((), (), dice.choice(SECRET_HOME_PATHS).split("/")))
    return "/".join([*(names(dice) for _ in range(dice.randint(0, 3))), *parts, *(names(dice) for _ in range(1))])


@pytest.mark.slow
@pytest.mark.parametrize(
    "base", ["/home/u/work", "/home/u", "/", "/home", "/home/u/.ssh", "/run", "/run/secrets", "/x", "/proc/1"]
)
def test_it_says_of_each_path_what_the_full_judgement_says(base: str) -> None:
    dice = random.Random(base)
    quick = SecretFiles(Path(base), lambda path: is_secret(path, HOME))
    found = 0
    for size in dice.choices(range(4), k=3_000):
        several = [path(dice) for _ in range(size)]
        expected = {os.fsencode(name) for name in several if is_secret(Path(base) / name, HOME)}
        assert quick.among([os.fsencode(name) for name in several]) == expected, several
        found += len(expected)
    assert found


def test_of_ordinary_names_it_asks_nothing() -> None:
    asked: list[Path] = []

    def judge(path: Path) -> bool:
        asked.append(path)
        return is_secret(path, HOME)

    quick = SecretFiles(Path("/home/u/work"), judge)
    asked.clear()
    assert not quick.among([f"src/part{n}/module_{n}.{end}".encode() for n in range(500) for end in ("py", "json")])
    assert asked == []
