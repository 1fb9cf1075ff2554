"""The input offers commands at its start, their arguments, and files after white space."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.document import Document

from agentcli.agent.commands.command import CommandHost, SlashCommand
from agentcli.frontends.terminal.input.completion import FileIndex, PromptCompleter


async def run(host: CommandHost, argument: str) -> str:
    return ""


COMMANDS = [
    SlashCommand("model", "choose the model", run, "[NAME]"),
    SlashCommand("clear", "start anew", run, aliases=("new",)),
    SlashCommand("remodel", "build anew", run),
    SlashCommand("quit", "leave", run, aliases=("exit", "q")),
]


async def files() -> Sequence[str]:
    return ["main.py", "src/app.py", "src/my app.py", "a folder/x.py", "it's.py"]


def arguments(name: str, typed: str) -> Iterable[tuple[str, str]]:
    values = {"model": [("big/one", "slow"), ("small/one", "fast")]}.get(name, [])
    return [(value, note) for value, note in values if value.startswith(typed)]


def completions(text: str, after: str = "") -> list[Completion]:
    async def complete() -> list[Completion]:
        completer = PromptCompleter(COMMANDS, arguments, FileIndex(files))
        document = Document(text + after, len(text))
        return [found async for found in completer.get_completions_async(document, CompleteEvent())]

    return asyncio.run(complete())


def results(text: str, after: str = "") -> list[str]:
    """The input before the cursor after each completion."""
    return [text[: len(text) + found.start_position] + found.text for found in completions(text, after)]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("/", ["/model ", "/clear ", "/remodel ", "/quit "]),
        ("/mod", ["/model ", "/remodel "]),
        ("/rem", ["/remodel "]),
        ("/ex", ["/quit "]),
        ("/ew", ["/clear "]),
        ("/zzz", []),
        ("what is /mod", []),
        ("/etc/mod", []),
        (" /mod", []),
    ],
)
def test_a_slash_at_the_start_offers_commands(typed: str, offered: list[str]) -> None:
    assert results(typed) == offered


def test_commands_and_arguments_are_shown_with_a_note() -> None:
    model = completions("/mode")[0]
    assert (model.display_text, model.display_meta_text) == ("/model", "choose the model")
    assert completions("/model sm")[0].display_meta_text == "fast"


def test_a_command_that_came_later_is_offered() -> None:
    commands = list(COMMANDS)
    completer = PromptCompleter(commands, arguments, FileIndex(files))
    commands.append(SlashCommand("shout", "say it louder", run))
    assert [c.text for c in completer.get_completions(Document("/sh"), CompleteEvent())] == ["/shout "]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("/model ", ["/model big/one", "/model small/one"]),
        ("/model  sm", ["/model  small/one"]),
        ("/model x", []),
        ("/clear ", []),
        ("/nothing ", []),
        ("/model a\nb", []),
    ],
)
def test_a_command_offers_its_arguments(typed: str, offered: list[str]) -> None:
    assert results(typed) == offered


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("@ma", "@main.py "),
        ("see @ma", "see @main.py "),
        ("first line\n@ma", "first line\n@main.py "),
        ("see @./ma", "see @main.py "),
        ("see @sr", "see @src/"),
        ("@src/ap", "@src/app.py "),
        ("@my", '@"src/my app.py" '),
        ('@"my', '@"src/my app.py" '),
        ('@"src/my a', '@"src/my app.py" '),
        ("@it", '@"it\'s.py" '),
        ('@"main', '@"main.py" '),
    ],
)
def test_an_at_sign_offers_files(typed: str, first: str) -> None:
    assert results(typed)[0] == first


def test_a_folder_can_be_continued_from() -> None:
    assert results("@src/") == ["@src/app.py ", '@"src/my app.py" ']
    [folder] = [text for text in results("@fol") if text.endswith("/")]
    assert folder == '@"a folder/'
    assert results(folder) == ['@"a folder/x.py" ']


@pytest.mark.parametrize("text", ["", "main", "me@main", "@main.py ", '@"main.py" ', "@main.py,", "@@ma", "x\n"])
def test_other_text_offers_nothing(text: str) -> None:
    assert results(text) == []


@pytest.mark.parametrize("after", [" and more", "\nand more"])
def test_a_space_or_quotation_mark_that_is_there_is_not_written_twice(after: str) -> None:
    assert results("@ma", after)[0] == "@main.py"
    assert results("/mod", after)[0] == "/model"
    assert results('@"my a', after=f'"{after}') == ['@"src/my app.py']
