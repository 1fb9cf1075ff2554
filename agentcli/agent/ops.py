"""Defines operations: everything a front end can ask of a session."""

from typing import Any, Literal

from msgspec import Struct

from agentcli.llm.messages import Block, Content, Image, Text, content_blocks
from agentcli.llm.provider import Effort, ToolSpec


class _MessageOp(Struct, frozen=True):
    content: Content

    def __post_init__(self) -> None:
        content_blocks(self.content)  # raises an error for a wrong type, before the operation is submitted

    @property
    def blocks(self) -> tuple[Block, ...]:
        return content_blocks(self.content)


class Prompt(_MessageOp, frozen=True, tag="prompt"):
    """Start a turn, or wait for the end of the running one. `model` answers this turn only, and only if it starts now.

    `tools` are run by the client: the model has them from the next turn until the session closes, and their calls
    arrive as `ClientToolRequested`. A prompt with a tool whose name is taken is rejected.
    """

    model: str = ""
    tools: tuple[ToolSpec, ...] = ()


class Steer(_MessageOp, frozen=True, tag="steer"):
    """Add a message to the next request of the running turn, or start a turn. Calls not yet started are skipped."""


class TakeBack(Struct, frozen=True, tag="take_back"):
    """Remove a waiting message, if any: the one at `position` (from 0, steering messages first) or else the last."""

    position: int | None = None


class RunQueued(Struct, frozen=True, tag="run_queued"):
    """Start a turn with the first queued message; nothing happens while a turn runs."""


class GoOn(Struct, frozen=True, tag="go_on"):
    """Continue where the conversation was cut short: at an unanswered question, or in an answer that broke off.

    With `if_unanswered`, also continue after a prompt or tool results that have no answer, because the program was
    killed. A turn that waits for MCP servers continues without them. In all other cases nothing happens.
    """

    if_unanswered: bool = False


class Interrupt(Struct, frozen=True, tag="interrupt"):
    """End the turn and the person's own commands now; the text so far is kept. With a `reason` the turn fails.

    Queued messages stay queued. A steering message that has not reached the model yet starts a turn. With
    `returns_prompt`, a prompt that the model has not begun to answer is removed, for the person to send again.
    """

    reason: str = ""
    returns_prompt: bool = False


class Pause(Struct, frozen=True, tag="pause"):
    """End the turn once only calls of the client are open. They stay open, and their `ClientResult`s continue it."""


class Answer(Struct, frozen=True):
    """Answers the question or the client's call with this id."""

    id: str


class Approve(Answer, frozen=True, tag="approve"):
    """Answer a `QuestionEvent`; a comment goes to the model.

    `scope` "session" also allows all calls that `rule` covers (empty: the narrowest rule offered), "always" does so in
    later sessions of the project too, and "try" makes a dry run first. With `mode`, a yes switches to that permission
    mode and adds no rule. `hunks` are the indices of the question's hunks to apply: None means all, an empty tuple
    means no. `input` replaces the arguments of a call, and is checked like the model's own. A no that `stops` ends the
    turn, so that the person can write the next prompt.
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

    With `is_step`, the person is cycling through modes: plan mode returns to this mode only if a turn uses it.
    """

    mode: str
    is_step: bool = False


class SetAttended(Struct, frozen=True, tag="set_attended"):
    """Set whether somebody answers questions and runs client tools. If not, questions are denied and the calls fail."""

    is_attended: bool


class SetEffort(Struct, frozen=True, tag="set_effort"):
    """Set how hard the model thinks from the next request on; None means the value of the settings."""

    effort: Effort | None


class Background(Struct, frozen=True, tag="background"):
    """Continue the running commands as background jobs; their calls end with the output so far."""


OWN_CALL = "own_"  # the ids of the person's own commands begin with this; these calls outlive a turn


class RunCommand(Struct, frozen=True, tag="run_command"):
    """Run the person's own command at once, without approval or sandbox; with `to_model` the model reads its output."""

    command: str
    to_model: bool = True


class CommandRan(Struct, frozen=True, tag="command_ran"):
    """Store a command of the person that the front end ran in a terminal; `output` ends with how it ended."""

    command: str
    output: str
    to_model: bool = True


class ClientResult(Answer, frozen=True, tag="client_result"):
    """The result of a call that the client ran. The last one that a paused turn waits for continues the turn."""

    content: str | tuple[Text | Image, ...]
    is_error: bool = False
    structured: Any = None

    def __post_init__(self) -> None:
        content_blocks(self.content)


TurnOp = Prompt | Steer | TakeBack | RunQueued | GoOn | Interrupt | Pause | Background
SettingOp = SetModel | SetMode | SetAttended | SetEffort
Op = TurnOp | SettingOp | Approve | RunCommand | CommandRan | ClientResult
