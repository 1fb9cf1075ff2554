"""Edits by an agent, by its commands and by a person, in random order; and what a model says is left after an undo.

Each file has lines that only the agent changes and lines that only the person does, none of them neighbours: a merge of
both is always possible, and the model knows its result without merging.
"""

from __future__ import annotations

import random
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentcli import Agent, AgentOptions
from agentcli.agent.commands.sessions import undo_in
from agentcli.agent.session import Session
from agentcli.agent.state import prompts
from agentcli.agent.undo import History, UndoResult
from agentcli.llm.providers.scripted import ScriptedProvider

LINES = 24
Lines = list[str]
Tree = dict[str, tuple[str, ...]]


def fresh(name: str) -> Lines:
    return [f"{name} {number}" for number in range(LINES)]


def write(path: Path, lines: Lines) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@dataclass
class World:
    """The real folder, and beside it what it would hold if the agent had done nothing.

    `without` is None for a file that is to stay whatever it holds: what the person did to a file of the agent's cannot
    be told from what the agent did.
    """

    folder: Path
    dice: random.Random
    without: dict[str, Lines | None] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)  # by the agent
    stays: set[str] = field(default_factory=set)
    count: int = 0

    def begin(self) -> None:
        for number in range(5):
            name = f"d{number % 2}/f{number}"
            self.without[name] = fresh(name)
            write(self.folder / name, fresh(name))

    @property
    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    def new_name(self, who: str) -> str:
        self.count += 1
        return f"{self.dice.choice(('d0', 'd1', f'{who}{self.count}'))}/{who}{self.count}"

    def line(self, who: str) -> int:
        """The agent has every fourth line, the person those between."""
        return 4 * self.dice.randrange(LINES // 4) + (0 if who == "agent" else 2)

    def agent_call(self) -> dict[str, Any]:
        """A call that does something, by an edit or by the shell; what it does is real once it has run."""
        self.count += 1
        files = [name for name in self.files if name not in self.stays]
        what = self.dice.choice(("edit", "edit", "sed", "sed", "create", "make", "remove", "chmod", "all"))
        name = self.dice.choice(files) if files else ""
        if what == "create" or not files:
            name = self.new_name("agent")
            self.touched.add(name)
            return {"name": "file_write", "input": {"path": name, "content": "\n".join(fresh(name)) + "\n"}}
        text = f"agent {self.count}"
        number = self.line("agent") + 1
        if what == "edit":
            old = (self.folder / name).read_text().splitlines()[number - 1]
            self.touched.add(name)
            return {"name": "file_edit", "input": {"path": name, "old_string": f"{old}\n", "new_string": f"{text}\n"}}
        if what == "make":
            name = self.new_name("agent")
            command = f"mkdir -p {shlex.quote(str(Path(name).parent))}; seq 30 >{name}"
        elif what == "remove":
            command = f"rm {name}"
        elif what == "chmod":
            command = f"chmod {self.dice.choice(('600', '755', '640'))} {name}"
        elif what == "all":
            self.touched.update(files)
            command = f"sed -i '{number}s/.*/{text}/' {' '.join(files)}"
        else:
            command = f"sed -i '{number}s/.*/{text}/' {name}"
        self.touched.add(name)
        return {"name": "bash", "input": {"command": command}}

    def person_does(self) -> None:
        self.count += 1
        files = [name for name in self.files if name not in self.stays]
        what = self.dice.choice(("edit", "edit", "edit", "create", "remove"))
        if what == "create" or not files:
            name = self.new_name("person")
            self.without[name] = fresh(name)
            write(self.folder / name, fresh(name))
            return
        name = self.dice.choice(files)
        lines = self.without.get(name)
        if lines is None:  # a file that is the agent's, or that it made anew
            if what == "edit":
                self.stays.add(name)
                with (self.folder / name).open("a") as file:
                    file.write(f"person {self.count}\n")
            return
        if what == "remove":
            (self.folder / name).unlink()
            self.without[name] = None
            return
        number = self.line("person")
        lines[number] = f"person {self.count}"
        real = (self.folder / name).read_text().splitlines()
        real[number] = lines[number]
        write(self.folder / name, real)

    def expected(self) -> Tree:
        left = {name: tuple(lines) for name, lines in self.without.items() if lines is not None}
        return left | {name: tuple((self.folder / name).read_text().splitlines()) for name in self.stays}


def tree_of(folder: Path) -> Tree:
    return {
        str(path.relative_to(folder)): tuple(path.read_text().splitlines())
        for path in folder.rglob("*")
        if path.is_file()
    }


def identities(folder: Path) -> dict[str, tuple[int, ...]]:
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            found[str(path.relative_to(folder))] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return found


async def interleave(seed: int, base: Path) -> list[str]:
    """Play one interleaving, undo all of it turn by turn, and redo it; gives what is wrong."""
    dice = random.Random(seed)
    world = World(base / "project", dice)
    world.begin()
    script = base / "script.jsonl"
    script.write_text('{"text": "never asked for"}\n')
    left = 0

    async def resolve(state: Any) -> Any:
        """The next reply is made when it is asked for: by then the folder is what the call meets."""
        nonlocal left
        if dice.random() < 0.4:
            world.person_does()
        left -= 1
        reply = {"tool_calls": [world.agent_call()]} if left >= 0 else {"text": "done"}
        provider = ScriptedProvider([reply])
        return provider, provider.info

    settings = {"permissions": {"mode": "bypassPermissions"}, "limits": {"max_turns": 50}}
    async with Agent(
        f"scripted/{script}", cwd=world.folder, options=AgentOptions(settings=settings, resolve=resolve)
    ) as agent:
        session = await agent.session()
        for number in range(dice.randint(1, 3)):
            left = dice.randint(1, 4)
            await agent.run(f"turn {number}")
            for _ in range(dice.randint(0, 2)):
                world.person_does()
        return await undone_and_redone(world, session)


async def nobody(shown: str, question: str) -> None:
    """Answer no question."""


def is_stuck(result: UndoResult) -> bool:
    ways = {file.how for file in result.files}
    return "conflict" in ways and ways <= {"conflict", "kept"}


async def undone_and_redone(world: World, session: Session) -> list[str]:
    wrong = []
    before, foreign = tree_of(world.folder), world.files
    marks = identities(world.folder)
    turns = 0
    while (result := await undo_in(session, "undo", "yes", nobody)).turn is not None:
        if is_stuck(result):  # the turns before it are taken back together
            since = History(session.state.conversation.entries).since(prompts(session.state.conversation)[0][0])
            result = await undo_in(session, "undo", "yes", nobody, turn=since)
        if is_stuck(result):
            break
        turns += any(file.how not in ("conflict", "kept") for file in result.files)
    wrong += differences("after the undo", tree_of(world.folder), world.expected())
    wrong += [
        f"{name} was touched"
        for name in foreign
        if name not in world.touched and identities(world.folder).get(name) != marks[name]
    ]
    for _ in range(turns):
        assert (await undo_in(session, "redo", "yes", nobody)).turn is not None
    wrong += differences("after the redo", tree_of(world.folder), before)
    return wrong


def differences(when: str, found: Tree, expected: Tree) -> list[str]:
    return [
        f"{when} {name} is {found.get(name)}, not {expected.get(name)}"
        for name in sorted({*found, *expected})
        if found.get(name) != expected.get(name)
    ]
