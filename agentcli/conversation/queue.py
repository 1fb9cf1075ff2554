"""The messages that wait while a turn runs; every change of them is an entry, so that a crash loses none."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from agentcli.conversation.entries import Queued
from agentcli.llm.messages import Block

Content = tuple[Block, ...]


class Queue:
    """`steering` reaches the model with its next request, `follow_ups` start turns of their own."""

    def __init__(self, follow_ups: Iterable[Content] = ()) -> None:
        self.steering: deque[Content] = deque()
        self.follow_ups: deque[Content] = deque(follow_ups)

    def entry(self) -> Queued:
        """The whole queue as an entry. A message that leaves the queue is stored in one transaction with this."""
        return Queued(tuple(self.steering), tuple(self.follow_ups))

    def take_back(self, position: int | None = None) -> bool:
        """Remove the message at a position, steering counted first, or the newest; False if there is none."""
        steering, waiting = len(self.steering), len(self.steering) + len(self.follow_ups)
        if position is None:
            position = waiting - 1
        if not 0 <= position < waiting:
            return False
        is_steering = position < steering
        del (self.steering if is_steering else self.follow_ups)[position if is_steering else position - steering]
        return True

    def take_steering(self) -> list[Content]:
        """Empty the steering messages into a list."""
        taken = list(self.steering)
        self.steering.clear()
        return taken
