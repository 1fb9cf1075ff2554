"""Lets the program at the other end answer questions: `can_use_tool` of its SDK."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agentcli.agent import events, ops
from agentcli.agent.permissions.modes import parse_mode
from agentcli.agent.permissions.rules import Rule, Verb, parse_rule, parse_rules
from agentcli.agent.session import Session
from agentcli.errors import UsageError, UserError
from agentcli.extensions.field_names import FIELD_NAMES, field_call, field_question, own_input
from agentcli.frontends.agent_sdk.channel import ClientError, ControlChannel

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class PermissionBridge:
    """Passes the questions of one session on, and submits the answers; `spawn` runs a task in the background."""

    def __init__(self, session: Session, channel: ControlChannel, spawn: Spawn) -> None:
        self._session, self._channel, self._spawn = session, channel, spawn
        self._asking: dict[str, asyncio.Task[None]] = {}  # by the ids of questions

    def ask(self, question: events.QuestionEvent) -> None:
        self._asking[question.id] = task = self._spawn(self._ask(question))
        task.add_done_callback(lambda done: self._asking.pop(question.id, None))

    def withdraw_settled(self) -> None:
        for id in self._asking.keys() - self._session.open_questions.keys():
            self._asking[id].cancel()

    async def _ask(self, question: events.QuestionEvent) -> None:
        name, input = self._call_of(question)
        about = {"tool_name": name, "input": input, "tool_use_id": question.call.id, "title": question.title}
        if question.agent_id != "main":
            about["agent_id"] = question.agent_id
        suggestions = list(_suggestions(question))
        try:
            answer = await self._channel.ask(
                "can_use_tool", **about, decision_reason=question.reason, permission_suggestions=suggestions
            )
            op = self._op(question, input, answer)
        except ClientError as error:
            op = ops.Approve(question.id, False, comment=str(error))
        except (AttributeError, TypeError, ValueError) as error:
            op = ops.Approve(question.id, False, comment=f"The program's answer is not valid: {error}")
        self._asking.pop(question.id, None)  # the answer settles it
        self._session.submit(op)

    def _call_of(self, question: events.QuestionEvent) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments that stand for a question."""
        match question:
            case events.Question(title=title, options=options):
                return "AskUserQuestion", field_question(title, options)
            case events.PlanApproval(preview=plan):
                return "ExitPlanMode", {"plan": plan}
            case _:
                call = question.call
                return field_call(call.name, call.input, self._session.snapshot().workspace.cwd)

    def _op(self, question: events.QuestionEvent, sent: Mapping[str, Any], answer: Mapping[str, Any]) -> ops.Approve:
        """Return the answer as an operation."""
        id = question.id
        match answer:
            case {"behavior": "deny"}:
                stops = bool(answer.get("interrupt"))
                return ops.Approve(id, False, comment=str(answer.get("message") or ""), stops=stops)
            case {"behavior": "allow"} if isinstance(question, events.Question):
                return ops.Approve(id, True, comment=_answer_text(answer.get("updatedInput") or {}, question.title))
            case {"behavior": "allow"}:
                updated = answer.get("updatedInput") or sent
                is_changed = updated != sent and question.kind == "run"
                input = own_input(question.call.name, updated, sent) if is_changed else None
                changes = self._change_permissions(answer.get("updatedPermissions") or ())
                return ops.Approve(id, True, input=input, **changes)
            case _:
                return ops.Approve(id, False, comment="The program's answer was neither allow nor deny.")

    def _change_permissions(self, updates: Sequence[Any]) -> dict[str, Any]:
        """Change the mode and the rules that restrict; return what else the answer allows, as fields of `Approve`.

        If one change cannot be made, none is: it may be a restriction that the others were meant to come with.
        """
        mode, restrictions, allowed, is_lasting = "", list[tuple[Verb, Rule]](), list[str](), False
        try:
            for update in updates:
                match update:
                    case {"type": "setMode", "mode": str(name)}:
                        mode = parse_mode(name)
                    case {"type": "addRules", "behavior": "allow", "rules": list(rules)}:
                        allowed += [str(_rule(rule)) for rule in rules]
                        is_lasting |= update.get("destination") != "session"
                    case {"type": "addRules", "behavior": "deny" | "ask" as verb, "rules": list(rules)}:
                        restrictions += [(verb, _rule(rule)) for rule in rules]
                    case _:
                        raise UsageError(f"{msgspec.json.encode(update).decode()} is not supported.")
            for text in (*allowed, *(str(rule) for _, rule in restrictions)):
                self._session.check_rule(text)
        except (UserError, KeyError, TypeError) as error:
            self._session.publish(events.Notice(f"The call is allowed once, without changes of permissions: {error}"))
            return {}
        for verb, rule in restrictions:
            self._session.state.rules.of(verb).append(rule)
        if mode:
            self._session.submit(ops.SetMode(mode))
        return {"scope": "always" if is_lasting else "session", "rule": " and ".join(allowed)} if allowed else {}


def _rule(value: Mapping[str, Any]) -> Rule:
    content = value.get("ruleContent")
    return parse_rule(f"{value['toolName']}({content})" if content else str(value["toolName"]), "session")


def _suggestions(question: events.QuestionEvent) -> Iterator[dict[str, Any]]:
    """Yield the changes of permissions that would make the question unnecessary."""
    for text in question.rules:
        read = [(FIELD_NAMES.get(rule.tool, rule.tool), rule.pattern) for rule in parse_rules(text)]
        rules = [{"toolName": name} | ({"ruleContent": pattern} if pattern else {}) for name, pattern in read]
        yield {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"}
    if question.mode:
        yield {"type": "setMode", "mode": question.mode, "destination": "session"}


def _answer_text(updated: Mapping[str, Any], question: str) -> str:
    """Return the answer to a question; a program gives it by the question's text."""
    answers = updated.get("answers")
    answer = answers.get(question, next(iter(answers.values()), "")) if isinstance(answers, Mapping) else ""
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)
