"""Does what a control asks of a session."""

from __future__ import annotations

from collections.abc import Collection

from agentcli.agent import ops
from agentcli.agent.permissions.approvals import check_offered
from agentcli.agent.permissions.modes import parse_mode
from agentcli.errors import UserError
from agentcli.frontends.json_forms.input import (
    Answer,
    Approve,
    ClientResult,
    ClientTools,
    Deny,
    Interrupt,
    SetModel,
    SetPermissionMode,
)
from agentcli.frontends.screenless import ScreenlessHost

SimpleControl = Interrupt | SetPermissionMode | SetModel | ClientTools | Answer | Approve | Deny | ClientResult


class NobodyWaits(UserError):
    """No question or call of that id waits for an answer."""


async def control(host: ScreenlessHost, asks: SimpleControl) -> None:
    """Raises `UserError`."""
    session = host.session
    match asks:
        case SetPermissionMode(mode):
            session.submit(ops.SetMode(parse_mode(mode)))
        case SetModel(model):
            session.submit(ops.SetModel(model))  # also a wrong one: no other may answer in its place
            await host.check_model(model)
        case ClientTools(tools):
            session.bring(tools)
        case Interrupt():
            host.interrupt()
        case Answer(id, text):
            _check_waits(id, session.asked, "question")
            session.submit(ops.Approve(id, True, comment=text))
        case Approve(id, scope, comment, rule, hunks, mode):
            _check_waits(id, session.asked, "question")
            answer = ops.Approve(id, True, scope, comment, rule, hunks, parse_mode(mode) if mode else "")
            check_offered(session.asked[id], answer)
            if rule:
                session.check_rule(rule)
            session.submit(answer)
        case Deny(id, comment):
            _check_waits(id, session.asked, "question")
            session.submit(ops.Approve(id, False, comment=comment))
        case ClientResult(id, content, is_error, structured):
            _check_waits(id, session.waiting_for_client, "call")
            session.submit(ops.ClientResult(id, content, is_error, structured))


def _check_waits(id: str, waiting: Collection[str], what: str) -> None:
    if id not in waiting:
        these = f"there is {', '.join(waiting)}" if waiting else "none waits"
        raise NobodyWaits(f"No {what} {id[:80]!r} waits for an answer; {these}.")
