"""Defines operations: everything a front end can ask of a session."""

from typing import Any, Literal

from msgspec import Struct

from agentcli.llm.messages import Block, Content, Image, Text, content_blocks
from agentcli.llm.provider import Effort, ToolSpec


class _MessageOp(Struct, frozen=True):
    content: Content

    def __post_init__(self) -> None:
        content_blocks(self.content)  # a wrong type is an error at once

    @property
    def blocks(self) -> tuple[Block, ...]:
        return content_blocks(self.content)


class Prompt(_MessageOp, frozen=True, tag="prompt"):
    """Start a turn; while one runs, wait for its end. `model` answers this turn only, where it starts at once.

    `tools` are the client's own: from the next turn on the model has them, for as long as the session is open, and
    their calls come as `ClientToolRequested`. A name that another tool has is refused, with the prompt.
    """

    model: str = ""
    tools: tuple[ToolSpec, ...] = ()


class Steer(_MessageOp, frozen=True, tag="steer"):
    """Reach the model before its next request; calls not yet started are skipped. Without a turn it is a prompt."""


class TakeBack(Struct, frozen=True, tag="take_back"):
    """Remove a waiting message, if there is one: that at `position` (steering first, from 0), else the last."""

    position: int | None = None


class RunQueued(Struct, frozen=True, tag="run_queued"):
    """Start a turn with the first queued message; nothing happens while a turn runs."""


class GoOn(Struct, frozen=True, tag="go_on"):
    """Continue where the conversation was cut short: at an unanswered question, or in an answer that broke off.

    With `is_killed` also after a prompt or results that the model has not answered, because the program was killed.
    A turn that waits for MCP servers continues without them. Nothing happens in other cases.
    """

    is_killed: bool = False


class Interrupt(Struct, frozen=True, tag="interrupt"):
    """End the turn and the person's own commands now; the text so far is kept. With a `reason` the turn has failed.

    Queued messages stay queued. A steering message that has not reached the model yet starts a turn. With
    `returns_prompt` a prompt is taken back for the person if the model has shown nothing yet.
    """

    reason: str = ""
    returns_prompt: bool = False


class Pause(Struct, frozen=True, tag="pause"):
    """End the turn once it waits for nothing but the client, whose calls stay open: `ClientResult`s continue it."""


class Answer(Struct, frozen=True):
    """Answers what waits under an id."""

    id: str


class Approve(Answer, frozen=True, tag="approve"):
    """Answer a `QuestionEvent`; a comment goes to the model.

    `scope` "session" also allows what `rule` covers (empty: the narrowest one offered), "always" in later sessions of
    the project too; "try" makes a dry run of it first. With `mode` a yes for the session switches to
    that permission mode in place of a rule. `hunks` names those of the request's hunks that are made; None means all,
    none means no. `input` replaces the arguments of a call, which are checked as the model's own are. A no that `stops`
    ends the turn, which waits for the person.
    """

    allowed: bool = True
    scope: Literal["once", "session", "always", "try"] = "once"
    comment: str = ""
    rule: str = ""
    hunks: tuple[int, ...] | None = None
    mode: str = ""
    stops: bool = False
    input: dict[str, Any] | None = None


class SetModel(Struct, frozen=True, tag="set_model", rename={"name": "model"}):
    """Use another model from the next request on: `provider/model`."""

    name: str


class SetMode(Struct, frozen=True, tag="set_permission_mode"):
    """Use another permission mode from the next call on.

    `is_step` says that the person only passes through the mode on the way to another one: plan mode goes back to it
    only if a turn has run in it.
    """

    mode: str
    is_step: bool = False


class SetAttended(Struct, frozen=True, tag="set_attended"):
    """Set if somebody answers questions and runs client tools. Else the answer is no, and the calls fail."""

    is_attended: bool


class SetEffort(Struct, frozen=True, tag="set_effort"):
    """Set how hard the model thinks from the next request on; None means as the settings say."""

    effort: Effort | None


class Background(Struct, frozen=True, tag="background"):
    """Let the commands that run now go on as background jobs; their calls end with the output so far."""


OWN_CALL = "own_"  # ids of calls for commands of the person's begin so: these calls outlive a turn


class RunCommand(Struct, frozen=True, tag="run_command"):
    """Run the person's own shell command at once, unasked and unconfined; `to_model`: it joins the conversation."""

    command: str
    to_model: bool = True


class CommandRan(Struct, frozen=True, tag="command_ran"):
    """Store the person's own command that the front end ran in a terminal, with its output and how it ended."""

    command: str
    output: str
    to_model: bool = True


class ClientResult(Answer, frozen=True, tag="client_result"):
    """The result of a call that the client ran. It continues a turn that was paused once no call waits any more."""

    content: str | tuple[Text | Image, ...]
    is_error: bool = False
    structured: Any = None

    def __post_init__(self) -> None:
        content_blocks(self.content)


Op = (
    Prompt | Steer | TakeBack | RunQueued | GoOn | Interrupt | Pause | Approve | SetModel | SetMode | SetAttended
    | SetEffort | Background | RunCommand | CommandRan | ClientResult
)  # fmt: skip
