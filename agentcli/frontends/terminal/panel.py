"""Draws a session's questions, with the choices that they offer."""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Literal

from msgspec.structs import replace

from agentcli.agent import events
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.modes import MODE_TEXTS, parse_mode
from agentcli.agent.permissions.rules import Rule, parse_rules
from agentcli.errors import UsageError
from agentcli.frontends.choices import Choice, choices_for, heading_for, yes_or_no
from agentcli.frontends.printable import escape_hidden
from agentcli.frontends.terminal import reviews
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped, in_rows, rows_of, with_spaces, wrapped
from agentcli.llm.messages import ToolUse
from agentcli.safety.commands.records import escaped
from agentcli.tools.command import count_changes
from agentcli.tools.observation import MAX_SUBJECT_CHARS, call_title
from agentcli.tools.text.diff import path_of, split_files

MAX_DIFF_ROWS = 300  # of several files; a longer diff is summarized by file, unless all of it is asked for
MAX_RULE_ROWS = 6  # of a rule below the choices
MAX_CHOICE_ROWS = 100  # if the caller sets no limit
MIN_REVIEW_ROWS = 3  # of a hunk or a plan, however many choices there are
KEY_COLUMNS = 4  # for the key before a choice's label
_SHOWN_IN_TITLE = frozenset(("file_read", "file_list", "grep_search", "web_fetch", "web_search"))
_VIEW, _RULE = Choice("view", "v", "View all of it"), Choice("rule", "e", "Edit the rule")
_CHANGE_PLAN = Choice("words", "Tab", "No, and say what to change")
_EDIT_PLAN = Choice("edit", "e", "Edit the plan first")
_OUTCOMES: dict[type[events.QuestionEvent], tuple[str, str]] = {  # what a yes and a no are called afterwards
    events.ChangesApproval: ("Applied", "Discarded"),
    events.LimitQuestion: ("Continued", "Stopped"),
    events.PlanApproval: ("Plan accepted", "Plan sent back"),
    events.Question: ("Answered", "Skipped"),
}
# The ids of choices that can be made before all of the question was on the screen.
_NEED_NO_READING = ("no", "not-yet", "words", "hunks", "leave", "leave_file", "leave_all", "back")
_SCOPES = {"session": " for this session", "always": " always, in this project"}


class QuestionPanel:
    """A question, and the state of the answer: the marked choice, the rule, a review of hunks or of a plan's lines."""

    def __init__(self, question: events.AnyQuestion, asker: str = "") -> None:
        self.question = question
        self.rules: list[str] = list(question.rules)  # from narrow to wide, then those that the person writes
        self.review: reviews.HunkReview | reviews.PlanComments | None = None
        self.unread: list[Fragment] = []  # the end of the preview, which was not on the screen yet; it prevents a yes
        self.unread_rows = 0  # rows that `unread` takes
        self._plan_comments = reviews.PlanComments(question)  # used if the question has a plan
        self._asker = asker  # the subagent that asks, and its task; empty for the main agent
        self._title = question.title.removeprefix(f"{question.agent_id}: ")
        self._rule_index = 0  # the index in `rules` of the rule that a lasting yes would set
        self._marked_id = self._default_id  # the id of the marked choice, which Enter selects

    @property
    def _default_id(self) -> str:
        """The id of the choice that is marked at first: yes, or no if a yes may do harm or costs more."""
        question = self.question
        if isinstance(question, events.PlanApproval):
            return f"plan:{question.next_mode}"
        is_risk = question.grave or question.has_failed or any(map(reviews.is_risky, question.changes))
        return "no" if is_risk or isinstance(question, events.LimitQuestion) else self.choices[0].id

    @property
    def choices(self) -> list[Choice]:
        """The choices that the terminal shows, those of the open review if there is one."""
        if self.review is not None:
            return self.review.choices
        # Choices without a key are for front ends with buttons.
        choices = [choice for choice in choices_for(self.question, [self.rule] if self.rules else []) if choice.key]
        match self.question:  # more choices, which need further input
            case events.Question():
                words = "Something else, in your own words" if self.question.options else "Answer in your own words"
                choices.insert(-1, Choice("words", "Tab", words))  # before the no
            case events.PlanApproval():
                count = len(self._plan_comments.comments)
                so_far = f" ({count} so far)" if count else ""
                choices += [_CHANGE_PLAN, Choice("comments", "c", f"Comment on lines of the plan{so_far}")]
                # A commented plan cannot be edited too: the comments are about its lines as they are.
                choices += [] if count else [_EDIT_PLAN]
            case _:
                choices.append(Choice("words", "Tab", "No, and say what to do instead"))
        label = f"Choose among {len(self.question.hunks)} {reviews.hunk_word(self.question)}s"
        return [*choices, Choice("hunks", "h", label)] if len(self.question.hunks) > 1 else choices

    @property
    def selectable_choices(self) -> list[Choice]:
        """The choices that can be made now: none of them a yes until all that it approves was on the screen."""
        is_hunk_read = isinstance(self.review, reviews.HunkReview) and self.review.has_shown_end
        ids = (*_NEED_NO_READING, "take") if is_hunk_read else _NEED_NO_READING  # "take" approves only this hunk
        return [choice for choice in self.choices if not self.unread or choice.id in ids]

    @property
    def no(self) -> Choice:
        return next(choice for choice in self.choices if choice.id in ("no", "not-yet", "back"))

    @property
    def text_purpose(self) -> Literal["answer", "plan_comment", "denial"]:
        """The purpose of typed text: an answer to the model's own question; to any other question, a denial."""
        if isinstance(self.review, reviews.PlanComments):
            return "plan_comment"
        return "answer" if isinstance(self.question, events.Question) else "denial"

    def choice_for(self, key: str) -> Choice | None:
        """Return the choice for a letter or, by its place, for a digit; None if the character may begin a text."""
        if isinstance(self.question, events.Question):
            # Options have digits as keys. A letter begins an answer in words, except y and n if Yes and No are options.
            index = yes_or_no(key, self.question.options)
            digit = key if index is None else f"{index + 1}"
            return next((choice for choice in self.choices if choice.key == digit and digit.isdecimal()), None)
        by_key = {str(place): choice for place, choice in enumerate(self.choices, 1)} | {"v": _VIEW}
        if self.rules and self.review is None:
            by_key["e"] = _RULE
        if first_yes := next((choice for choice in self.choices if choice.is_yes), None):
            by_key["y"] = first_yes  # also for a plan, whose choices have digits
        return (by_key | {choice.key: choice for choice in self.choices}).get(key)

    @property
    def rule(self) -> str:
        return self.rules[self._rule_index] if self.rules else ""

    @property
    def selected(self) -> Choice:
        choices = self.selectable_choices
        return next((choice for choice in choices if choice.id == self._marked_id), choices[0])

    def move(self, by: int) -> None:
        if isinstance(self.review, reviews.PlanComments):
            self.review.move(by)
        else:
            choices = self.selectable_choices
            self._marked_id = choices[(choices.index(self.selected) + by) % len(choices)].id

    def select_rule(self, by: int) -> None:
        """Select a rule that is `by` steps wider, or narrower for a negative number."""
        self._rule_index = max(0, min(self._rule_index + by, len(self.rules) - 1))

    def set_rule(self, text: str) -> bool:
        """Add and select the person's own rule; return False if it cannot be parsed. The session checks it further."""
        try:
            parse_rules(text)
        except UsageError:
            return False
        self.rules.append(text)
        self._rule_index = len(self.rules) - 1
        return True

    def start_review(self, choice: Choice) -> None:
        """Go through the hunks one by one, or through the lines of a plan, whose comments are kept."""
        if choice.id == "hunks":
            self.review = reviews.HunkReview(self.question)
            self._marked_id = self.review.default_id
        else:
            self.review = self._plan_comments

    def end_review(self) -> None:
        self.review, self._marked_id = None, self._default_id

    def decide_in_review(self, choice_id: str, comment: str = "") -> Approve | None:
        """Apply a choice to the marked hunk or line; return the answer once the review is complete."""
        assert self.review is not None
        answer = self.review.decide(choice_id, comment)
        self._marked_id = self.review.default_id
        return answer

    def _no_with_comments(self, comment: str = "") -> Approve:
        """Return a no, with the comments on a plan. The model reads it and continues."""
        comments = filter(None, (self._plan_comments.message, comment))
        return Approve(self.question.id, allowed=False, comment="\n\n".join(comments))

    def answer(self, choice: Choice) -> Approve:
        """Return the answer of a choice; a commented plan is accepted together with its comments."""
        if choice.answer is None or not choice.is_yes:
            return self._no_with_comments()
        comments = self._plan_comments.message
        return replace(choice.answer, comment=f"{self.question.preview}\n\n{comments}") if comments else choice.answer

    def answer_in_words(self, text: str) -> Approve:
        """Return the answer to the model's question; to other questions, a no that says what to do instead."""
        if isinstance(self.question, events.Question):
            return Approve(self.question.id, allowed=True, comment=text)
        return self._no_with_comments(text)

    def outcome(self, answer: Approve, columns: int) -> list[Fragment]:
        """Return the transcript's line about the answer; empty if the call's own line will show the answer."""
        question, call = self.question, self.question.call
        if call.name == "ask_user":  # its line ends with the answer
            return []
        yes, no = _OUTCOMES.get(type(question), ("Allowed", "Declined"))
        subject, comment = self._title, answer.comment
        if isinstance(question, events.CallApproval | events.ChangesApproval):
            subject = str(call.input.get("command", "")) if call.name == "bash" else call_title(call.name, call.input)
        if isinstance(question, events.CallApproval):
            if question.opens:
                yes = "Dry run again"  # with access to what the first one lacked
            else:
                yes = "Dry run first" if answer.scope == "try" else yes + _SCOPES.get(answer.scope, " once")
        elif isinstance(question, events.PlanApproval):
            # The plan itself is on the screen; the mode in which it will be carried out is not.
            subject = MODE_TEXTS[parse_mode(answer.mode or question.next_mode)].name if answer.allowed else ""
            comment = "" if answer.allowed else comment  # with a yes, it is the plan, edited or with comments
        elif answer.scope != "once":
            yes += f", and allowed{_SCOPES[answer.scope]}"
        if answer.allowed and answer.hunks is not None:
            yes += f" · {len(answer.hunks)} of {len(question.hunks)} {reviews.hunk_word(question)}s"
        mark = ("ok", "✓") if answer.allowed else ("error", "✗")
        agent = "" if question.agent_id == "main" else f"{question.agent_id}: "
        shown_subject = f" · {escape_hidden(agent + ' '.join(subject.split()))}" if subject else ""
        line = clipped([mark, ("", f" {yes if answer.allowed else no}"), ("muted", shown_subject)], columns)
        line.append(("muted", f" · “{escape_hidden(comment)}”" if comment else ""))
        return [*wrapped(line, columns, hang=2), ("", "\n")]

    def preview(self, columns: int, *, is_whole: bool = False) -> list[Fragment]:
        """Return who asks, the effects, then all of the command, the arguments or the diff (see `MAX_DIFF_ROWS`).

        A plan is on the screen already, so its preview is empty unless it has hidden characters.
        """
        head, question = [*wrapped(self._headline(), columns, hang=2), ("", "\n")], self.question
        if self._asker:
            head = [*clipped([("accent", escape_hidden(self._asker))], columns), ("", "\n"), *head]
        match question:
            case events.PlanApproval(preview=text):
                text = text.replace("\r\n", "\n")
                # The printed plan lacks its hidden characters: print it again with these made visible.
                return [] if escape_hidden(text) == text else [("", f"{escape_hidden(text).rstrip()}\n")]
            case events.ChangesApproval():
                command = str(question.call.input.get("command", question.call.name))
                shown = _marked_lines(command, "$ ", "  ", columns=columns)
                if question.output:  # each line after a bar, so that none looks like a part of the diff
                    shown += _marked_lines(question.output, "│ ", "│ ", "muted", columns=columns)
                shown += _changes_text(question, columns, is_whole=is_whole)
            case events.CallApproval(preview=text) if not _is_title_complete(question.call):
                if path_of(text):  # of an edit, whose preview is a diff
                    shown = reviews.diff_text(text, columns)
                else:
                    shown = _marked_lines(text, "$ " if question.call.name == "bash" else "  ", "  ", columns=columns)
            case _:
                return head
        if len(self._rule_rows(columns)) == MAX_RULE_ROWS:  # the panel cuts such a long rule
            shown.append(("muted", f"  {self._rule_text}\n"))
        return [*head, *shown]

    def _headline(self) -> list[Fragment]:
        """Return a command's effects, one a line; another call's title and effects; else a question and its reason."""
        question, call, separator = self.question, self.question.call, " · "
        if isinstance(question, events.CallApproval):
            is_grave = bool(question.grave)
            effects = [
                ("bold error" if text in question.grave else "", escape_hidden(text)) for text in question.effects
            ]
            if call.name == "bash":  # the command itself is printed below
                separator = "\n  "
                (role, text), *others = effects or [("", "run a command")]
                head = (role or "bold", text[:1].upper() + text[1:])
            else:
                head, others = ("bold", escape_hidden(call_title(call.name, call.input))), effects
        else:
            is_grave = any(change.kind == "deleted" or change.permanent_loss for change in question.changes)
            title = f"Dry run: {count_changes(question.changes)}" if question.changes else self._title
            head = ("bold error" if is_grave else "bold", escape_hidden(title))
            others = [("muted", escape_hidden(question.reason))] if question.reason else []
        more = [fragment for part in others for fragment in (("muted", separator), part)]
        return [("bold error" if is_grave else "bold", "? "), head, *more]

    def rows(
        self, columns: int, other_questions: int = 0, *, max_rows: int = MAX_CHOICE_ROWS, is_ready: bool = True
    ) -> list[Row]:
        """Return the choices, one a row, below a reviewed hunk or plan; muted until the panel `is_ready` for keys."""
        if self.unread and not self.review:
            count = f"{self.unread_rows:,} more row{'' if self.unread_rows == 1 else 's'}"
            keys = "↓ row · PageDown page · End all · v pager"
            head = _folded_line("warning", f"Scroll to the end to approve ({count}): {keys}", columns)
        else:
            text = self.review.heading if self.review else heading_for(self.question)
            more = f" +{other_questions} more" if other_questions else ""
            head = [clipped([("bold", text), ("muted", more)], columns)]
        below = [] if self.unread or self.review else self._rule_rows(columns)
        # A review is laid out before its choices, because a yes can be selected only once the review's end was shown.
        if self.review:
            room = max_rows - len(head) - len(self._choice_rows(self.choices, columns))
            head = [*self.review_rows(columns, max(MIN_REVIEW_ROWS, room)), *head]
        rows = self._choice_rows(self.selectable_choices, columns, is_ready=is_ready)
        room = max(1, max_rows - len(head) - len(below))
        marked_row, _ = reviews.marked_cell(rows)
        first = max(0, min(marked_row - room // 2, len(rows) - room))  # so that the marked choice is in the middle
        return [*head, *rows[first : first + room], *below]

    def _choice_rows(self, choices: Sequence[Choice], columns: int, *, is_ready: bool = True) -> list[Row]:
        # While lines of a plan are commented on, one of them is marked instead of a choice.
        marked = None if isinstance(self.review, reviews.PlanComments) else self.selected
        rows: list[Row] = []
        for choice in choices:
            mark, label_role = (reviews.MARK, "selected") if choice == marked else (reviews.NO_MARK, "")
            key_role, label_role = ("bold accent", label_role) if is_ready else ("muted", "muted")
            row: Row = [mark, (key_role, f" {choice.key:<{KEY_COLUMNS}}"), (label_role, choice.label)]
            rows += in_rows(row, columns, hang=KEY_COLUMNS + 2)  # 2: the mark and a blank
        return rows

    def review_rows(self, columns: int, max_rows: int) -> list[Row]:
        return self.review.visible_rows(columns, max_rows) if self.review else []

    @property
    def _rule_text(self) -> str:
        """The calls that a lasting yes would cover; empty if there is no such choice."""
        keys = "/".join(choice.key for choice in self.choices if choice.rule)
        return f"Rule for {keys}: {self._describe_rule()}" if keys else ""

    def _describe_rule(self) -> str:
        """Describe what the rule covers; a text that cannot be parsed is returned as it was written."""
        command = str(self.question.call.input.get("command", "")).strip()
        if self.rule == str(Rule("bash", escaped(command))):  # the rule has no wildcards
            return "exactly this command"
        try:
            rules = parse_rules(self.rule)
        except UsageError:
            return escape_hidden(self.rule).replace("\n", "␊")
        return escape_hidden(" and ".join(map(_covered_calls, rules))).replace("\n", "␊")

    def _rule_rows(self, columns: int) -> list[Row]:
        """Return the rule in at most `MAX_RULE_ROWS` rows; a longer one is cut, because `preview` has all of it."""
        keys = "e to edit, ←/→ narrower or wider" if len(self.rules) > 1 else "e to edit"
        rows = _folded_line("muted", f"  {self._rule_text} ({keys})", columns) if self._rule_text else []
        if len(rows) > MAX_RULE_ROWS:
            rows[MAX_RULE_ROWS - 1 :] = [clipped([("muted", "    … v shows all of it")], columns)]
        return rows

    def plain_lines(self) -> list[str]:
        """Return the heading, the choices that need no live screen, and the rule, as lines. Enter replaces Esc."""
        rows = [f"  {one.key.replace('Esc', 'Enter')}  {one.label}" for one in self.choices if one.answer is not None]
        return [heading_for(self.question), *rows, *([f"  {self._rule_text}"] if self._rule_text else [])]


def _covered_calls(rule: Rule) -> str:
    """Describe the calls that a rule covers, such as "every command that starts with `npm`" for `bash(npm *)`."""
    tool, pattern = rule.tool, rule.pattern
    if not pattern:
        return f"every {tool} call"
    if tool == "bash":
        start = pattern.removesuffix(" *")
        return f"commands that match `{pattern}`" if start == pattern else f"every command that starts with `{start}`"
    pattern = pattern.removeprefix("/") if pattern.startswith("//") else pattern  # rules write absolute paths with //
    if pattern.endswith("/**"):
        return f"{tool} calls for files below {pattern.removesuffix('/**')}"
    return f"{tool} calls for {pattern.removeprefix('domain:')}"


def _changes_text(question: events.ChangesApproval, columns: int, *, is_whole: bool) -> list[Fragment]:
    """Return the diffs of all changes; if they are long, a summary by file unless `is_whole`."""
    # For each change, the index of its first hunk in `question.hunks`; `change.hunks` is how many it has.
    first_hunks = accumulate((change.hunks for change in question.changes), initial=0)
    # A change with a single hunk has no `diff`, because the hunk shows all of it.
    parts = [(c.diff or question.hunks[first], c) for c, first in zip(question.changes, first_hunks, strict=False)]
    shown = [*chain.from_iterable(reviews.change_text(text, change, columns) for text, change in parts)]
    has_files = sum(len(split_files(text)) for text, _ in parts) > 1  # else there is nothing to summarize
    if is_whole or not has_files or (count := rows_of(shown, columns)) <= MAX_DIFF_ROWS:
        return shown
    brief = (reviews.change_text(text, change, columns, is_brief=True) for text, change in parts)
    note = f"  This is a summary by file. To see all {count:,} rows, press v.\n"
    return [*chain.from_iterable(brief), *wrapped([("muted", note)], columns, hang=2)]


def _is_title_complete(call: ToolUse) -> bool:
    """Return True if the title shows the call's only argument in full, so that a preview would just repeat it."""
    text = " ".join(map(str, call.input.values()))
    is_whole = len(call.input) == 1 and len(text) <= MAX_SUBJECT_CHARS and text == " ".join(text.split())
    return is_whole and call.name in _SHOWN_IN_TITLE and call_title(call.name, call.input).endswith(text)


def _marked_lines(text: str, first: str, others: str, role: str = "", *, columns: int) -> list[Fragment]:
    """Lay out a text, its lines after the mark `first` or `others`; the further rows of a line are indented more."""
    lines = enumerate(escape_hidden(text.rstrip("\n")).split("\n"))
    rows = [(role, f"  {others if n else first}{with_spaces(line)[0]}\n") for n, line in lines]
    return wrapped(rows, columns, hang=6)


def _folded_line(role: str, line: str, columns: int) -> list[Row]:
    return in_rows([(role, with_spaces(line)[0])], columns, hang=4)
