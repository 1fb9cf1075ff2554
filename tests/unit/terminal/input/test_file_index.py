"""Files found by a few letters of their path: order, freshness, and how long the event loop is held."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.errors import ToolError
from agentcli.frontends.terminal.input.completion import FRESH_S, FileIndex, ripgrep_files

PROJECT = (
    "README.md",
    "src/main.py",
    "src/domain.py",
    "src/main/handler.py",
    "src/mechanical_adaptive_index.py",
    "docs/Main.md",
    "maintenance/log.txt",
    ".github/workflows/ci.yml",
    "a folder/a file.txt",
)


class Listing:
    """A project whose files can change; counts how often it was listed."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.times = 0

    async def __call__(self) -> Sequence[str]:
        self.times += 1
        return list(self.paths)


def with_index(paths: Sequence[str], use: Callable[[FileIndex], Awaitable[list[str]]]) -> list[str]:
    async def run() -> list[str]:
        index = FileIndex(Listing(paths))
        try:
            return await use(index)
        finally:
            await index.aclose()

    return asyncio.run(run())


def matches(query: str, paths: Sequence[str] = PROJECT, limit: int = 12) -> list[str]:
    return with_index(paths, lambda index: index.match(query, limit))


# A name that begins with the query, one that holds it, a path that does, letters in order; the shorter first.
MAIN = (
    "src/main/ src/main.py docs/Main.md maintenance/ src/domain.py maintenance/log.txt src/main/handler.py "
    "src/mechanical_adaptive_index.py"
)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("main", MAIN),
        ("Main", "docs/Main.md"),  # a capital matches capitals only
        ("mAin", ""),
        ("src/", "src/domain.py src/main/ src/main.py src/mechanical_adaptive_index.py"),
        ("docs/", "docs/Main.md"),
    ],
)
def test_the_best_matches_come_first(query: str, found: str) -> None:
    assert matches(query) == found.split()
    assert matches(query, limit=2) == found.split()[:2]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("readme", "README.md"),
        ("READ", "README.md"),
        ("smp", "src/main.py"),
        ("handler", "src/main/handler.py"),
        ("s/ma", "src/main/"),
        ("s/main.", "src/main.py"),
        ("src/main/h", "src/main/handler.py"),
        ("a fi", "a folder/a file.txt"),
        ("ci.yml", ".github/workflows/ci.yml"),
    ],
)
def test_a_few_letters_find_a_file(query: str, first: str) -> None:
    assert matches(query)[0] == first


@pytest.mark.parametrize("query", ["zzz", "main/zzz", "x" * 5_000, "a\nb", "[", "\\", "(?", "^", "]-["])
def test_a_pattern_without_matches_gives_nothing(query: str) -> None:
    assert matches(query) == []


@pytest.mark.parametrize(
    ("query", "paths", "found"),
    [
        ("[x]", "a[x].py ax.py", "a[x].py"),
        ("a^-]", "a^-].py a.py", "a^-].py"),
        ("éta", "ÉTAT.md etat.md", "ÉTAT.md"),
        ("app", "tests/unit/app.py app.py lib/app.py", "app.py lib/app.py tests/unit/app.py"),
    ],
)
def test_every_character_is_a_letter_and_the_shorter_path_comes_first(query: str, paths: str, found: str) -> None:
    assert matches(query, paths.split()) == found.split()


def test_an_empty_query_gives_what_is_at_the_top_with_hidden_names_last() -> None:
    assert matches("") == ["a folder/", "docs/", "maintenance/", "README.md", "src/", ".github/"]


def test_a_query_typed_letter_by_letter_finds_what_the_whole_one_finds() -> None:
    steps = ["src/mcx"[:end] for end in range(8)]
    steps += reversed(steps)  # and taking the letters back

    async def typed(index: FileIndex) -> list[str]:
        return ["\n".join(await index.match(query)) for query in steps]

    assert with_index(PROJECT, typed) == ["\n".join(matches(query)) for query in steps]
    assert matches("src/mcx") == ["src/mechanical_adaptive_index.py"]


paths_strategy = st.lists(
    st.text("abAB/._é", min_size=1, max_size=12).filter(lambda path: not path.startswith("/") and path[-1] != "/"),
    max_size=30,
    unique=True,
)


@given(paths=paths_strategy, query=st.text("abA/é", min_size=1, max_size=5))
def test_every_path_with_the_letters_in_order_is_found(paths: list[str], query: str) -> None:
    def holds(path: str) -> bool:
        letters = iter(path if query != query.lower() else path.lower())
        return all(letter in letters for letter in query)

    async def all_prefixes(index: FileIndex) -> list[str]:
        for end in range(1, len(query)):
            await index.match(query[:end], 1_000)
        return await index.match(query, 1_000)

    found = with_index(paths, all_prefixes)
    assert len(found) == len(set(found))
    assert all(holds(path) for path in found)
    if not query.endswith("/"):
        assert {path for path in paths if holds(path)} <= {*found, query}


def test_files_are_listed_at_the_first_query_and_again_when_they_are_old() -> None:
    async def run() -> None:
        now = 100.0
        listing = Listing(["one.py"])
        index = FileIndex(listing, clock=lambda: now)
        assert listing.times == 0
        assert await index.match("") == ["one.py"]
        listing.paths.append("two.py")
        assert await index.match("") == ["one.py"]
        now += FRESH_S + 1
        assert listing.times == 1
        assert await index.match("t") == []  # answers from the old listing while the new one is made
        while listing.times < 2 or len(await index.match("o")) < 2:
            await asyncio.sleep(0)
        assert await index.match("two") == ["two.py"]
        await index.aclose()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_query_that_is_not_wanted_any_more_gives_nothing() -> None:
    assert with_index(PROJECT, lambda index: index.match("main", is_wanted=lambda: False)) == []
    assert with_index(PROJECT, lambda index: index.match("", is_wanted=lambda: False)) == []


def test_files_that_cannot_be_listed_are_none(tmp_path: Path) -> None:
    async def broken() -> Sequence[str]:
        raise ToolError("ripgrep is missing")

    async def run(list_files: Callable[[], Awaitable[Sequence[str]]]) -> list[str]:
        return await FileIndex(list_files).match("")

    for list_files in (broken, partial(ripgrep_files, tmp_path / "gone")):
        assert asyncio.run(run(list_files)) == []


def test_ripgrep_lists_hidden_files_and_no_ignored_ones(tmp_path: Path) -> None:
    for name in ("a.py", "sub/b c.py", ".hidden/x", "out/ignored.o", ".git/config", 'say "hi"', "line\nend", "é.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("out/\n")

    assert sorted(asyncio.run(ripgrep_files(tmp_path))) == [".gitignore", ".hidden/x", "a.py", "sub/b c.py", "é.txt"]


def test_a_listing_that_continues_is_ended_with_the_index(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()

    async def run() -> None:
        index = FileIndex(partial(ripgrep_files, tmp_path))
        asking = asyncio.ensure_future(index.match(""))
        await asyncio.sleep(0)
        await index.aclose()
        assert await asking == []

    asyncio.run(asyncio.wait_for(run(), 10))


@pytest.mark.slow
def test_a_query_among_100_000_files_takes_little_and_lets_the_event_loop_breathe() -> None:
    pick = random.Random(1)
    words = "src app core model utils test handler service index main config parser view page api server user".split()
    folders = ["/".join(pick.choices(words, k=pick.randint(1, 6))) for _ in range(8_000)]
    paths = [f"{pick.choice(folders)}/{pick.choice(words)}_{pick.choice(words)}{n}.py" for n in range(100_000)]

    async def run() -> None:
        index = FileIndex(Listing(paths))
        await index.match("")
        for query in ("a", "ab", "srcapp", "x", "zzz", "handler_parser9", "src/ma", "servicemainpy"):
            longest, total = 0.0, 0.0

            async def ask(query: str = query) -> None:
                await index.match("")  # so that nothing is narrowed yet
                await index.match(query)

            asking = asyncio.ensure_future(ask())
            start = last = time.thread_time()  # what else the machine does does not count
            while not asking.done():
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - last)
                last = time.thread_time()
            total = last - start
            # Ten times what it takes on a laptop.
            assert total < 1.0, query
            assert longest < 0.05, query

    asyncio.run(run())
