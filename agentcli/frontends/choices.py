"""Lists the choices for each kind of question, with their keys; all front ends offer the same ones."""

from collections.abc import Iterator, Sequence

import msgspec

from agentcli.agent import events
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.modes import MODE_TEXTS, Mode
from agentcli.frontends.printable import escape_hidden

_HEADINGS: dict[type[events.QuestionEvent], str] = {  # above the choices
    events.CommandApproval: "Run this command?",
    events.EditApproval: "Make this edit?",
    events.CallApproval: "Allow this call?",
    events.ChangesApproval: "Apply these changes?",
    events.LimitQuestion: "Continue?",
    events.PlanApproval: "Carry out this plan?",
    events.Question: "Your answer?",
}
_PLAN_LABELS: dict[Mode, str] = {"default": "Yes, ask before each edit", "acceptEdits": "Yes, accept edits"}


class Choice(msgspec.Struct, frozen=True):
    """One possible answer to a question, with its key. A choice without an `answer` asks for further input."""

    id: str
    key: str
    label: str
    answer: Approve | None = None

    @property
    def rule(self) -> str:
        return self.answer.rule if self.answer else ""

    @property
    def is_yes(self) -> bool:
        return self.answer is not None and self.answer.allowed


def heading_for(question: events.AnyQuestion) -> str:
    if question.opens:
        return f"Run it again with the {question.opens}?"
    return "Write this file?" if question.call.name == "file_write" else _HEADINGS[type(question)]


def choices_for(question: events.AnyQuestion, rules: Sequence[str] = ()) -> list[Choice]:
    """Return the choices that need no further input. A lasting yes grants one of the `rules`, narrowest first."""
    yes, no = Approve(question.id, allowed=True), Approve(question.id, allowed=False)
    match question:
        case events.Question(options=options):
            choices = [
                Choice(f"answer:{n}", f"{n + 1}", escape_hidden(text), msgspec.structs.replace(yes, comment=text))
                for n, text in enumerate(options)
            ]
            return [*choices, Choice("no", "Esc", "Skip this question", no)]
        case events.PlanApproval(next_mode=next_mode):
            modes = dict.fromkeys([*_PLAN_LABELS, next_mode])  # each once
            labels = [_PLAN_LABELS.get(mode, f"Yes, back to {MODE_TEXTS[mode].name}") for mode in modes]
            choices = [
                Choice(f"plan:{mode}", f"{n}", label, msgspec.structs.replace(yes, mode=mode))
                for n, (mode, label) in enumerate(zip(modes, labels, strict=True), 1)
            ]
            return [*choices, Choice("not-yet", "n", "No, keep planning", no)]
        case events.CommandApproval(opens=opens) if opens:  # a host or files, which the dry run could not reach
            label = "No, go on without it" if opens == "host" else "No, discard the dry run"
            again = Choice("once", "y", f"Yes, run it again with the {opens}", yes)
            return [again, Choice("no", "n", label, no)]
        case events.LimitQuestion():
            return [Choice("once", "y", "Yes", yes), Choice("no", "n", "No, stop", no)]
        case _:
            label = "No, discard" if isinstance(question, events.ChangesApproval) else "No"
            return [Choice("once", "y", "Yes", yes), *_lasting_choices(question, rules), Choice("no", "n", label, no)]


def yes_or_no(key: str, labels: Sequence[str]) -> int | None:
    """Return the index of the label that `y` or `n` selects if one begins with Yes and one with No; else None."""
    words = [label.replace(",", " ").partition(" ")[0].lower() for label in labels]
    word = {"y": "yes", "n": "no"}.get(key, "")
    return words.index(word) if word and {"yes", "no"} <= set(words) else None


def _lasting_choices(question: events.CallApproval | events.ChangesApproval, rules: Sequence[str]) -> Iterator[Choice]:
    """Yield the other ways to say yes: for the session, always (by the narrowest rule), or after a dry run."""
    lasting = Approve(question.id, allowed=True, scope="session")
    mode = question.mode if isinstance(question, events.EditApproval) else ""  # the mode that does not ask about edits
    if mode:
        label = "Yes, and don't ask about edits again this session"
        yield Choice(f"mode:{mode}", "s", label, msgspec.structs.replace(lasting, mode=mode))
    subject = " for this command" if isinstance(question, events.CommandApproval | events.ChangesApproval) else ""
    label = f"Yes, and don't ask{subject} again this session"
    key = "" if mode else "s"  # without a key, these choices are only for front ends that show buttons
    for n, rule in enumerate(rules):  # the answers differ in their rules, which front ends show beside the label
        yield Choice(f"session:{n}", key, label, msgspec.structs.replace(lasting, rule=rule))
    if rules:
        always = msgspec.structs.replace(lasting, scope="always", rule=rules[0])
        yield Choice("always", "a", "Always in this project", always)
    if isinstance(question, events.CommandApproval) and question.can_try:
        yield Choice("try", "t", "Dry run first, then decide", msgspec.structs.replace(lasting, scope="try"))
