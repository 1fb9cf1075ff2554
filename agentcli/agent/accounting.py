"""Budgets, which limit the spending of turns, sessions and days; and the total usage of conversations.

An account belongs to one scope. A charge goes to all accounts of a `Budgets`: to those of the turn, its session and the
day, and for a subagent to those of its parent, too.
"""

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import count
from typing import Any, Literal

from msgspec import Struct, field, structs

from agentcli.conversation.entries import Assistant, Body, Compaction, Entry, Paid, Result, SkillActivated, User
from agentcli.errors import UserError
from agentcli.llm.messages import Usage
from agentcli.llm.models import ModelInfo, estimate_text

Kind = Literal["usd", "tokens", "seconds", "calls"]
Amounts = dict[Kind, float]  # `seconds` are spent by requests and calls; `calls` are calls of tools
MIN_REPLY_TOKENS = 1_024  # no request is sent if the budgets allow only a shorter reply


class Account:
    """The limits and the spending of one scope in this process; a `DayAccount` includes all processes."""

    def __init__(self, scope: str, limits: Amounts | None = None) -> None:
        self.scope = scope
        self.first_limits: Amounts = dict(limits or {})  # also the amounts by which the person may raise the limits
        self.limits = dict(self.first_limits)
        self.warned: set[Kind] = set()  # kinds for which there was a warning that they are nearly used up
        self._spent: Amounts = {}
        self._held: dict[int, Amounts] = {}  # reserved for running requests, by the numbers that `hold` returned
        self._numbers = count()

    def locked(self) -> AbstractContextManager[object]:
        """Return a lock for reserving; a `DayAccount` locks out other processes. Raises `StorageError`."""
        return nullcontext()

    def spent(self, *, with_held: bool = True) -> Amounts:
        """Return the charged amounts; `with_held` includes the amounts held for running requests."""
        return total_amounts(self._spent, *(self._held.values() if with_held else ()))

    def hold(self, amounts: Amounts) -> int:
        """Hold amounts for a request, and return the number for `settle`."""
        number = next(self._numbers)
        self._held[number] = amounts
        return number

    def settle(self, number: int, amounts: Amounts) -> None:
        """Charge amounts in place of the held amounts with this number."""
        self._held.pop(number, None)
        self._spent = total_amounts(self._spent, amounts)


class OverBudget(UserError):
    """A limit of an account does not cover a request or calls. The question `id` offers the higher limit `more`."""

    def __init__(self, account: Account, kind: Kind, cause: str) -> None:
        limit, spent = account.limits[kind], account.spent().get(kind, 0.0)
        self._account, self._kind = account, kind
        # Raised by the amount of the first limit. The spending may already be far above the limit.
        self._next_limit = max(limit, spent) + account.first_limits[kind]
        self.setting = f"budgets.{account.scope}_{kind}"
        self.id = f"{self.setting}={limit:g}"  # with the limit, so that the next raise is another question
        self.more = format_amount(kind, self._next_limit)
        limit_text, spent_text = format_amount(kind, limit), format_amount(kind, spent)
        super().__init__(f"The {account.scope}'s budget of {limit_text} is used up (spent: {spent_text}; {cause}).")

    def allow_more(self) -> None:
        """Raise the limit by its first amount, counted from the spending if that is above the limit."""
        self._account.limits[self._kind] = self._next_limit
        self._account.warned.discard(self._kind)


class Reservation(Struct):
    """The amounts held for a request. Only the first call of `settle` has an effect."""

    _holds: list[tuple[Account, int]]  # accounts, each with the number of the held amounts
    max_tokens: int  # of the reply
    seconds: float  # infinite if no budget limits the time
    is_open: bool = True

    def settle(self, usage: Usage, cost_usd: float | None, seconds: float) -> None:
        """Charge the actual amounts of the request; an unknown price charges no money."""
        if self.is_open:
            amounts: Amounts = {"usd": cost_usd or 0.0, "tokens": usage.context_tokens, "seconds": seconds}
            for account, number in self._holds:
                account.settle(number, amounts)
        self.is_open = False


class Budgets:
    """The accounts of one agent, the narrowest scope first. At the share `warn_at` of a limit, there is one warning."""

    def __init__(self, accounts: Sequence[Account] = (), *, warn_at: float = 0.8) -> None:
        self.accounts = tuple(accounts)
        self.warn_at = warn_at
        self._unpriced: set[str] = set()  # ids of models whose unknown price was reported

    def within(self, account: Account) -> "Budgets":
        """Return the budgets of a turn or a subagent: its own account and these, which get its charges, too."""
        budgets = Budgets((account, *self.accounts), warn_at=self.warn_at)
        budgets._unpriced = self._unpriced  # shared, so that there is only one warning
        return budgets

    @property
    def is_limited(self) -> bool:
        return any(account.limits for account in self.accounts)

    def limits(self, *, with_held: bool = True) -> Iterator[tuple[Account, Kind, float, float]]:
        """Yield each limit: its account, its kind, its amount, and the spent and held part of it."""
        for account in self.accounts:
            spent = account.spent(with_held=with_held) if account.limits else {}
            for kind, limit in account.limits.items():
                yield account, kind, limit, spent.get(kind, 0.0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as locks:
            for account in self.accounts:
                locks.enter_context(account.locked())
            yield

    def reserve(self, prompt_tokens: Callable[[], int], max_tokens: int, info: ModelInfo) -> Reservation:
        """Reserve a request's maximum, with a reply as long as budgets allow. Raises `OverBudget`, `StorageError`."""
        if not self.is_limited:  # then it does not matter how long the prompt is, and counting it takes time
            return Reservation([(account, account.hold({})) for account in self.accounts], max_tokens, math.inf)
        prompt = prompt_tokens()
        per_prompt, per_reply = info.prices.max_rates(prompt) if info.prices else (0.0, 0.0)

        def max_amounts(reply: int) -> Amounts:
            return {"usd": prompt * per_prompt + reply * per_reply, "tokens": prompt + reply}

        min_tokens, seconds = min(MIN_REPLY_TOKENS, max_tokens), math.inf
        with self._locked():
            for account, kind, limit, spent in self.limits():
                left_for_reply = limit - spent - max_amounts(reply=0).get(kind, 0.0)
                match kind:
                    case "seconds":
                        seconds = min(seconds, left_for_reply)
                    case "tokens":
                        max_tokens = min(max_tokens, int(left_for_reply))
                    case "usd" if per_reply:
                        per_token = per_reply * (1 + 1e-9)  # slightly more, so that rounding never exceeds the limit
                        max_tokens = min(max_tokens, int(left_for_reply / per_token))
                # Time never lowers `max_tokens`, nor does money if replies are free, so both are checked here.
                is_used_up = kind in ("usd", "seconds") and left_for_reply <= 0
                if is_used_up or max_tokens < min_tokens:
                    needed = "more time" if kind == "seconds" else format_amount(kind, max_amounts(min_tokens)[kind])
                    raise OverBudget(account, kind, f"the next request could need {needed}")
            holds = [(account, account.hold(max_amounts(max_tokens))) for account in self.accounts]
        return Reservation(holds, max_tokens, seconds)

    def begin_calls(self, calls: int) -> None:
        """Charge calls that are about to run. Raises `OverBudget` and charges none if the budgets do not cover all."""
        with self._locked():
            for account, kind, limit, spent in self.limits():
                if kind == "calls" and spent + calls > limit:
                    raise OverBudget(account, "calls", f"the model asked for {format_amount('calls', calls)} more")
            self.charge({"calls": calls})

    def charge(self, amounts: Amounts) -> None:
        for account in self.accounts:
            account.settle(account.hold({}), amounts)  # nothing was held for them

    def check(self) -> None:
        """Raise `OverBudget` if money, tokens or time are used up. Calls are checked when they begin."""
        for account, kind, limit, spent in self.limits():
            if kind != "calls" and spent >= limit:
                raise OverBudget(account, kind, "the next request would exceed it")

    def warnings(self, info: ModelInfo) -> list[str]:
        """Return new warnings after a request: a budget is nearly used up, or cannot limit a model without a price."""
        warnings, has_money = [], False
        for account, kind, limit, spent in self.limits(with_held=False):
            has_money |= kind == "usd"
            if kind not in account.warned and spent >= self.warn_at * limit:
                account.warned.add(kind)
                used = f"{format_amount(kind, spent)} of {format_amount(kind, limit)}"
                warnings.append(f"The {account.scope}'s budget is {spent / limit:.0%} used: {used}.")
        if info.prices is None and has_money and info.id not in self._unpriced:
            self._unpriced.add(info.id)
            warnings.append(
                f"The price of {info.id} is unknown, so budgets in money do not limit it. Set its prices in "
                f'[models.{info.provider}."{info.id}"], or set a token budget (budgets.session_tokens).'
            )
        return warnings


def total_amounts(*parts: Amounts) -> Amounts:
    kinds = dict.fromkeys(kind for amounts in parts for kind in amounts)
    return {kind: sum(amounts.get(kind, 0.0) for amounts in parts) for kind in kinds}


def format_amount(kind: Kind, amount: float) -> str:
    """Return "$0.0123", "12 s", "1,200 tokens" or "1 call"."""
    match kind:
        case "usd":
            return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"
        case "seconds":
            return f"{amount:,.0f} s"
        case _:
            return "1 " + kind.removesuffix("s") if amount == 1 else f"{amount:,.0f} {kind}"


_TOKENS = "input_tokens output_tokens cache_creation_input_tokens cache_read_input_tokens reasoning_tokens".split()


class Tally(Struct, kw_only=True):
    """The number of requests, and their usage. `cost_usd` leaves out the `unpriced` ones, whose price is unknown."""

    requests: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0
    unpriced: int = 0
    duration_ms: int = 0
    retries: int = 0

    def add(self, usage: Usage, cost_usd: float | None, duration_ms: int = 0, retries: int = 0) -> None:
        self.requests += 1
        self.usage = self.usage + usage
        self.cost_usd += cost_usd or 0.0
        self.unpriced += cost_usd is None
        self.duration_ms += duration_ms
        self.retries += retries

    @property
    def full_cost_usd(self) -> float | None:
        """The cost of all requests; None if the price of any is unknown, because `cost_usd` is then too low."""
        return None if self.unpriced else self.cost_usd

    def as_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {name: getattr(self.usage, name) for name in _TOKENS}
        row["cost_usd"] = None if self.requests and self.unpriced == self.requests else self.cost_usd
        row |= {"requests": self.requests, "unpriced_requests": self.unpriced}
        for name, value in structs.asdict(self).items():  # a `SessionTally` has more fields
            if name not in ("requests", "usage", "cost_usd", "unpriced"):
                row[name] = value.as_dict() if name == "calls" else value
        return row


class ToolTally(Struct, kw_only=True):
    """The calls of one tool or of all. `tokens` estimates the length of their results."""

    calls: int = 0
    duration_ms: float = 0.0
    tokens: int = 0
    retries: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    output_levels: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result, tokens: int) -> None:
        self.calls += 1
        self.duration_ms += result.duration_ms
        self.tokens += tokens
        self.retries += result.retry_count
        if result.result.is_error:
            other = "not run" if result.result.text.startswith("Not run: ") else "failed"
            self.errors[result.error_code or result.error_kind or other] += 1
        if result.output_level:
            self.output_levels[result.output_level] += 1

    @property
    def ran(self) -> int:
        """The number of calls that were neither declined nor skipped: only these can succeed or fail."""
        return self.calls - self.errors["not run"] - self.errors["permission_denied"]

    @property
    def success_rate(self) -> float:
        """The share of successes among the calls that ran; `errors` also counts those that did not run."""
        return (self.calls - self.errors.total()) / self.ran if self.ran else 1.0

    def top_errors(self, limit: int) -> str:
        errors = ", ".join(f"{count} {error}" for error, count in self.errors.most_common(limit))
        return errors.replace("permission_denied", "declined")

    @property
    def mean_ms(self) -> float:
        return self.duration_ms / self.calls if self.calls else 0.0

    def as_dict(self) -> dict[str, Any]:
        rates = {"success_rate": round(self.success_rate, 4), "mean_duration_ms": round(self.mean_ms, 1)}
        rates["mean_tokens"] = round(self.tokens / max(1, self.calls), 1)
        sums = ("tokens", "retries", "errors", "output_levels")
        return {"calls": self.calls, **rates} | {name: getattr(self, name) for name in sums}


class SessionTally(Tally, kw_only=True):
    """The usage of conversations. `turns` counts the person's messages, `rounds` replies; times are Unix times."""

    messages: int = 0
    turns: int = 0
    rounds: int = 0
    compactions: int = 0
    started: float = 0.0
    ended: float = 0.0
    calls: ToolTally = field(default_factory=ToolTally)
    skills: Counter[str] = field(default_factory=Counter)  # activations, by the skills' names


class UsageCollector:
    """Adds up the usage of all conversations whose options contain it.

        collector = UsageCollector()
        options = AgentOptions(usage=collector)
        async with Agent(model, options=options) as one, Agent(model, options=options) as other:
            ...
        print(collector.report()["total"]["cost_usd"])

    Agents in several threads may share one.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.total = SessionTally()
        self.days: defaultdict[str, Tally] = defaultdict(Tally)  # by local date: YYYY-MM-DD
        self.models: defaultdict[str, Tally] = defaultdict(Tally)  # by `provider/model`
        self.users: defaultdict[str, Tally] = defaultdict(Tally)  # by user id; "" without one
        self.tools: defaultdict[str, ToolTally] = defaultdict(ToolTally)  # by the tool's name
        self.sessions: defaultdict[str, SessionTally] = defaultdict(SessionTally)  # by session id
        self._lock = threading.Lock()
        for entry in entries:
            self.add("", entry)  # entries do not name their session

    def add(self, session_id: str, entry: Entry, *, user_id: str = "") -> None:
        """Count an entry of a log."""
        body = entry.body
        with self._lock:
            session = self.sessions[session_id]
            for tally in (self.total, session):
                tally.started = min(tally.started or entry.time, entry.time)
                tally.ended = max(tally.ended, entry.time)
                tally.messages += isinstance(body, User | Assistant | Result)
                tally.turns += entry.is_prompt
                tally.rounds += isinstance(body, Assistant)
                tally.compactions += isinstance(body, Compaction)
                tally.skills.update([body.skill.name] if isinstance(body, SkillActivated) else ())
            if isinstance(body, Result):
                tokens = estimate_text(body.result.text) if body.result.content else 0
                for calls in (self.tools[body.name], self.total.calls, session.calls):
                    calls.add(body, tokens)
            if isinstance(body, Assistant | Paid) and (request := paid_request(body)) is not None:
                model, usage, cost_usd = request
                retries = body.retries if isinstance(body, Assistant) else 0
                day = time.strftime("%Y-%m-%d", time.localtime(entry.time))
                for spending in (self.days[day], self.users[user_id], session):
                    spending.add(usage, cost_usd, body.duration_ms, retries)
                self.add_request(model, usage, cost_usd, body.duration_ms, retries)  # in the total and for its model

    def add_request(
        self, model: str, usage: Usage, cost_usd: float | None, duration_ms: int = 0, retries: int = 0
    ) -> None:
        """Count a request in the total and for its model (`provider/model`), but for no day, user or session."""
        for tally in (self.total, self.models[model]):
            tally.add(usage, cost_usd, duration_ms, retries)

    @property
    def by_model(self) -> dict[str, tuple[Usage, float | None]]:
        return {model: (tally.usage, tally.full_cost_usd) for model, tally in self.models.items()}

    def report(self) -> dict[str, Any]:
        """Return the usage as in `agentcli usage --json`: days and sessions by time, tools by calls, others by cost."""
        tools = sorted(self.tools.items(), key=lambda item: -item[1].calls)
        sessions = sorted(self.sessions.items(), key=lambda item: item[1].started)
        return {
            "total": self.total.as_dict(),
            "days": _rows("day", sorted(self.days.items())),
            "models": _rows("model", by_cost(self.models)),
            "tools": _rows("tool", tools),
            "users": _rows("user_id", by_cost(self.users)),
            "sessions": _rows("session_id", sessions),
        }


def paid_request(body: Body) -> tuple[str, Usage, float | None] | None:
    """Return the model of an entry's request, its usage and its price in USD; None if nothing was used."""
    match body:
        case Assistant(stop_reason="interrupted") if body.usage == Usage():
            return None  # the reply broke off before the server counted any token
        case Assistant(prefix="", cost_usd=0.0) if body.usage == Usage():
            return None  # an imported conversation: another program made the request
        case Assistant():
            return f"{body.provider}/{body.model}", body.usage, body.cost_usd
        case Paid() if body.usage != Usage():
            return body.model, body.usage, body.cost_usd
        case _:
            return None


def by_cost(tallies: Mapping[str, Tally]) -> list[tuple[str, Tally]]:
    """Return the tallies sorted by cost, the highest first, and then by tokens."""
    return sorted(tallies.items(), key=lambda item: (-item[1].cost_usd, -item[1].usage.context_tokens, item[0]))


def _rows(key: str, tallies: Iterable[tuple[str, Tally | ToolTally]]) -> list[dict[str, Any]]:
    return [{key: name, **tally.as_dict()} for name, tally in tallies]
