"""Reads the history of a conversation: its turns, active skills and title; also searches its whole log."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile

from msgspec import Struct

from agentcli.conversation import entries as log
from agentcli.conversation.conversation import Conversation
from agentcli.llm.messages import Document, Image, Text, Thinking, ToolResult, ToolUse, block_text
from agentcli.patterns import lazy_pattern
from agentcli.tools.observation import call_title

MAX_TITLE_CHARS = 80
_SKILL_REMINDER = lazy_pattern(r'<system-reminder><skill name="([^"]*)" ')  # a reminder with a skill's instructions
_MARKS = lazy_pattern(r"^(?:[#>*+-]+\s+)+")  # Markdown marks at the start of a line
_NO_PROSE = lazy_pattern(r"(?:```|~~~).*|</?\w[^<>]*>|\W*")  # a code fence, a tag, or punctuation only
_ONE_WORD = lazy_pattern(r"\W*(?:\w+\W*)?")  # for example a greeting

_TEXTUAL = (Text, Thinking, ToolUse)  # blocks that are searched as text; others are searched only by their kind
_EXCERPT_CHARS = 160  # on each side of a match
_MAX_SHORT_WORD = 3  # letters; a word this short is part of many others, so only whole words match it
_PHRASE_SCORE = 10.0  # added for an entry that has the whole query
_COMMON_WORDS = frozenset(
    "a an and are as at be by did do for from had has have how in is it its of on or that the this to was we were what "
    "when where which who why with you".split()
)


class Step(Struct, frozen=True):
    """An entry that reaches the model. `number` is its position in the log, from 1 on, by which `recall` finds it."""

    number: int
    entry: log.Entry


class TurnSteps(Struct, frozen=True):
    """One turn. It begins with a prompt; reminders before the first prompt belong to the first turn."""

    number: int
    steps: tuple[Step, ...]

    @property
    def calls(self) -> list[ToolUse]:
        replies = (step.entry.body for step in self.steps if isinstance(step.entry.body, log.Assistant))
        return [use for reply in replies for use in calls_in(reply)]

    @property
    def observations(self) -> list[log.Result]:
        return [step.entry.body for step in self.steps if isinstance(step.entry.body, log.Result)]


def turn_steps(conversation: Conversation) -> list[TurnSteps]:
    """Return the turns on the path, oldest first, numbered from 1 on."""
    turns: list[list[Step]] = []
    has_prompt = False  # reminders before the first prompt do not begin a turn of their own
    # By `id()`, because two results may have the same id.
    numbers = {id(entry): number for number, entry in enumerate(conversation.entries, 1)}
    for entry in conversation.path:
        if isinstance(entry.body, log.User | log.Assistant | log.Result):
            if not turns or (entry.is_prompt and has_prompt):
                turns.append([])
            has_prompt = has_prompt or entry.is_prompt
            turns[-1].append(Step(numbers[id(entry)], entry))
    return [TurnSteps(number, tuple(steps)) for number, steps in enumerate(turns, 1)]


def text_of(body: log.Body) -> str:
    """Return the text of a reply or a result; empty for any other entry."""
    if isinstance(body, log.Assistant):
        return "".join(block.text for block in body.content if isinstance(block, Text))
    return body.result.text if isinstance(body, log.Result) else ""


def calls_in(reply: log.Assistant) -> list[ToolUse]:
    return [block for block in reply.content if isinstance(block, ToolUse)]


def transcript_lines(entries: Iterable[log.Entry]) -> Iterator[str]:
    """Yield a conversation as lines for a person: its texts and calls, with one line for each result."""
    for body in (entry.body for entry in entries):
        match body:
            case log.User(is_reminder=False):
                yield f"› {body.text}\n"
            case log.Assistant():
                calls = [f"• {call_title(use.name, use.input)}" for use in calls_in(body)]
                yield from (part for part in (text_of(body).strip(), *calls) if part)
            case log.Result(result=result, summary=summary):
                yield f"  {'✗' if result.is_error else '✓'} {body.name} {summary}"
            case log.Compaction(carried=carried):
                yield f"[summary] {carried}"
            case log.Unreadable(error, stored):
                yield f"[{error}] {stored}".rstrip()


def active_skills(path: Sequence[log.Entry]) -> list[log.SkillActivated]:
    """Return the skills that are active at the end of a path, oldest first."""
    active: dict[str, log.SkillActivated] = {}
    for entry in path:
        if isinstance(entry.body, log.SkillActivated):
            active[entry.body.id] = entry.body
        elif isinstance(entry.body, log.SkillEnded):
            active.pop(entry.body.id, None)
    return list(active.values())


def skill_reminder(activated: log.SkillActivated, path: Sequence[log.Entry]) -> log.User | None:
    """Return the reminder with the instructions of an activated skill; None if the model was not given any."""
    later = dropwhile(lambda entry: entry.body is not activated, path)
    messages = (entry.body for entry in later if isinstance(entry.body, log.User))
    return next((message for message in messages if skill_of(message) == activated.skill.name), None)


def skill_of(message: log.User) -> str:
    """Return the name of the skill whose instructions a reminder contains; empty for any other message."""
    found = _SKILL_REMINDER.match(message.text) if message.is_reminder else None
    return found[1] if found else ""


def carried_reminders(path: Sequence[log.Entry]) -> list[log.User]:
    """Return the reminders that a compaction keeps whole: those of active skills, and the newest accepted plan."""
    skills = (skill_reminder(activated, path) for activated in active_skills(path))
    plans = [entry.body.text for entry in path if isinstance(entry.body, log.PlanAccepted)]
    newest_plan = [log.reminder(f"The plan that the user has accepted:\n{plan}") for plan in plans[-1:]]
    return [*(skill for skill in skills if skill is not None), *newest_plan]


def title_of(entries: Iterable[log.Entry]) -> str:
    """Return the oldest prompt in one line."""
    return next((short_prompt(entry.body) for entry in entries if entry.is_prompt), "")


def short_prompt(body: object) -> str:
    """Return the first line of a prompt that has some content, shortened; empty for any other entry."""
    if not isinstance(body, log.User) or body.is_reminder:
        return ""
    lines = [" ".join(_MARKS.sub("", line.strip()).split()) for line in body.text.splitlines()]
    prose = [line for line in lines if not _NO_PROSE.fullmatch(line)]
    # `isascii`, because a whole line in Chinese looks like one word.
    of_several_words = (line for line in prose if not _ONE_WORD.fullmatch(line) or not line.isascii())
    return shorten(next(of_several_words, next(iter(prose), "")), MAX_TITLE_CHARS)


def shorten(line: str, max_chars: int) -> str:
    """Return a line cut to `max_chars`, between words if a word ends in its second half."""
    if len(line) <= max_chars:
        return line
    cut = line[: max_chars - 1]  # an ellipsis follows
    last_blank = cut.rfind(" ") if not line[max_chars - 1].isspace() else -1  # -1: the cut is between two words
    if last_blank >= max_chars // 2:
        cut = cut[:last_blank]
    return f"{cut.rstrip(' ,;:.-')}…"


def brief(description: str, max_chars: int) -> str:
    """Return the first sentence of a description, shortened."""
    return shorten(description.partition(". ")[0].rstrip("."), max_chars)


class LogSearch:
    """Searches a conversation's whole log for `recall`, also the entries that were compacted or undone."""

    def __init__(self, conversation: Conversation) -> None:
        self._entries = conversation.entries

    def entry(self, id: str) -> tuple[str, tuple[Image | Document, ...]] | None:
        """Return the text and the images of an entry, by its number in the log or its id; None if there is none."""
        wanted = id.strip().lstrip("#")
        for number, entry in self._numbered():
            if wanted in (str(number), entry.id):
                return f"{_heading(number, entry.body)}\n{_searched_text(entry.body)}", _media(entry.body)
        return None

    def search(self, query: str) -> list[str]:
        """Return excerpts of the entries with the query or half of its words, best first; newer ones first if equal."""
        phrase = " ".join(query.lower().split())
        patterns = [
            re.compile(rf"(?<!\w){re.escape(word)}(?!\w)" if len(word) <= _MAX_SHORT_WORD else re.escape(word))
            for word in distinctive_words(phrase)
        ]
        texts = [(number, entry.body, _searched_text(entry.body)) for number, entry in self._numbered()]
        lowered = [text.lower() for _, _, text in texts]
        # How many entries each pattern matches. A rare word scores more than a frequent one.
        counts = {pattern: sum(pattern.search(text) is not None for text in lowered) for pattern in patterns}
        scored: list[tuple[float, int, str]] = []  # the score, number and excerpt of an entry
        for (number, body, text), lower in zip(texts, lowered, strict=True):
            # Where each pattern first matches the text.
            found = {pattern: match.start() for pattern in patterns if (match := pattern.search(lower))}
            has_phrase = phrase in lower
            if has_phrase or (found and 2 * len(found) >= len(patterns)):
                score = (
                    sum(math.log(1 + len(texts) / counts[pattern]) for pattern in found) + has_phrase * _PHRASE_SCORE
                )
                at = lower.find(phrase) if has_phrase else found[min(found, key=counts.__getitem__)]  # the rarest word
                start, end = max(0, at - _EXCERPT_CHARS), at + _EXCERPT_CHARS
                excerpt = f"{'…' if start else ''}{' '.join(text[start:end].split())}{'…' if end < len(text) else ''}"
                scored.append((score, number, f"{_heading(number, body)} {excerpt}"))
        return [text for _, _, text in sorted(scored, key=lambda one: (-one[0], -one[1]))]

    def _numbered(self) -> Iterator[tuple[int, log.Entry]]:
        """Yield the entries that can be found, with their numbers. Newest first, because ids may occur twice."""
        for number in range(len(self._entries), 0, -1):
            entry = self._entries[number - 1]
            is_of_recall = isinstance(entry.body, log.Result) and entry.body.name == "recall"
            if isinstance(entry.body, log.User | log.Assistant | log.Result | log.Pinned) and not is_of_recall:
                yield number, entry


def distinctive_words(query: str) -> list[str]:
    """Return the words of a query without the most common ones, or all words if there are no others."""
    words = list(dict.fromkeys(re.findall(r"[\w./-]*\w", query)))
    return [word for word in words if word not in _COMMON_WORDS] or words


def _heading(number: int, body: log.Body) -> str:
    match body:
        case log.User():
            speaker = "note" if body.is_reminder else "user"
        case log.Result(name=name, result=result):
            speaker = f"{name}{' (failed)' if result.is_error else ''}"
        case log.Pinned():
            speaker = "pinned"
        case _:
            speaker = "you"  # the model that reads this wrote the reply
    return f"[#{number} {speaker}]"


def _searched_text(body: log.Body) -> str:
    match body:  # calls of `recall` are left out, because they contain the words of earlier searches
        case log.User(content) | log.Assistant(content=content):
            shown = (block for block in content if not (isinstance(block, ToolUse) and block.name == "recall"))
            texts = (block_text(b) if isinstance(b, _TEXTUAL) else f"[{type(b).__name__.lower()}]" for b in shown)
            return "\n".join(filter(None, texts))
        case log.Result(result=result):
            return result.text
        case log.Pinned(text):
            return text
        case _:
            return ""


def _media(body: log.Body) -> tuple[Image | Document, ...]:
    match body:
        case log.User(content) | log.Result(result=ToolResult(content=tuple() as content)):
            return tuple(block for block in content if isinstance(block, Image | Document))
        case _:
            return ()


def listed_names(names: Sequence[str], max_names: int) -> str:
    """Return the first `max_names` names and the number of others, as `a, b and 3 more`."""
    more = f" and {len(names) - max_names:,} more" if len(names) > max_names else ""
    return f"{', '.join(names[:max_names])}{more}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as `2 files`; `many` is the plural, if it is not just `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
