"""Brings earlier text back into the input: queued messages, prompts from the history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentcli.agent.commands.command import Picked
from agentcli.agent.events import TakeBack
from agentcli.frontends.terminal.approval.picker import Picker, Picking
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.composer import Composer
from agentcli.frontends.terminal.output.live import Live, said
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.llm.messages import Block

LONGEST_ROW = 200  # characters of a text in a list


@dataclass(eq=False)
class Recalling:
    """Lets the person choose where there are several texts."""

    controller: TerminalController
    composer: Composer
    picking: Picking
    view: TurnView
    live: Live
    hint: Callable[[str], None]

    def take_back(self) -> None:
        """Put the newest queued message back into the input."""
        if waiting := self.live.queued:
            self._take_back(waiting, len(waiting) - 1)

    def choose_queued(self) -> None:
        """Put one of the queued messages back, to be changed, sent later or dropped."""
        waiting = self.live.queued

        def take(number: int) -> None:
            if waiting == self.live.queued:
                self._take_back(waiting, number)

        if len(waiting) > 1:
            self._choose("Take back", [said(content) for content in waiting], take)
        else:
            self.take_back()

    def search_history(self) -> None:
        entries = list({(sent.text, *sent.pastes.values()): sent for sent in self.composer.history.entries}.values())
        if entries:
            texts = [sent.text for sent in entries]
            self._choose("History", texts, lambda number: self.composer.put(entries[number]))
        else:
            self.hint("The history is empty.")

    def _choose(self, title: str, texts: Sequence[str], take: Callable[[int], None]) -> None:
        async def take_picked(picked: Awaitable[Picked | None]) -> None:
            if (chosen := await picked) is not None:
                take(chosen.number)

        options = [(" ".join(text.split())[:LONGEST_ROW], "") for text in texts]
        self.controller.spawn(take_picked(self.picking.pick(Picker(title, options))))

    def _take_back(self, waiting: Sequence[Sequence[Block]], position: int) -> None:
        self.view.will_take_back(waiting[position])
        self.controller.session.submit(TakeBack(position))
        self.composer.put_before(self.composer.as_typed(waiting[position]))
