"""Holds turns, sessions and days to what they may spend: the worst case is reserved before a request.

An account counts for one scope; a charge goes to all accounts of a `Budgets`, so that it rolls up from a turn to its
session and its day, and from a child agent to its parent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Literal

from agentcli.errors import UserError
from agentcli.llm.messages import Usage
from agentcli.llm.models import ModelInfo, request_size
from agentcli.llm.provider import Request

Kind = Literal["usd", "tokens", "seconds", "calls"]
Amounts = dict[Kind, float]  # `seconds` are those of requests and calls, `calls` those of tools

MIN_REPLY_TOKENS = 1_024  # a reply that may not even be that long is not asked for
# Tokens of a byte that no provider has counted yet, at most: base64 comes to 0.72 in cl100k_base,
# characters beyond ASCII to 0.95. Prose has 0.22, but a reservation must be enough.
TOKENS_PER_BYTE, TOKENS_PER_FOREIGN_BYTE = 0.75, 1.0
TOKENS_PER_MESSAGE = 8
MEDIA_MARGIN = 1.5


class Account:
    """The limits of one scope in this process, and what it spent; `infra/shared.py` has those of all processes."""

    def __init__(self, scope: str, limits: Amounts | None = None) -> None:
        self.scope = scope
        self.steps: Amounts = dict(limits or {})  # the first limits
        self.limits = dict(self.steps)
        self.warned: set[Kind] = set()  # kinds that a warning said are nearly used up
        self._spent: Amounts = {}
        self._held: dict[int, Amounts] = {}
        self._numbers = count()

    def locked(self) -> AbstractContextManager[object]:
        """Keep everybody else, in other processes too, from reserving while the body runs. Raises `StorageError`."""
        return nullcontext()

    def spent(self) -> Amounts:
        """Return the sum of what was charged and what is held."""
        return added(self._spent, *self._held.values())

    def hold(self, amounts: Amounts) -> int:
        """Hold amounts back, and return the number to settle them by."""
        number = next(self._numbers)
        self._held[number] = amounts
        return number

    def settle(self, number: int, amounts: Amounts) -> None:
        """Charge amounts in place of those that were held under the number."""
        self._held.pop(number, None)
        self._spent = added(self._spent, amounts)


class OverBudget(UserError):
    """An account does not allow the next request or call; `needs` says what that takes."""

    def __init__(self, account: Account, kind: Kind, needs: str) -> None:
        self._account = account
        self._kind: Kind = kind
        limit, spent = account.limits[kind], account.spent().get(kind, 0.0)
        self._more = max(limit, spent) + account.steps[kind]
        limit_text, spent_text = in_words(kind, limit), in_words(kind, spent)
        super().__init__(f"The {account.scope}'s budget of {limit_text} is used up (spent: {spent_text}; {needs}).")

    @property
    def setting(self) -> str:
        return f"budgets.{self._account.scope}_{self._kind}"

    @property
    def id(self) -> str:
        """The id of the question if more is allowed; another one after each yes."""
        return f"{self.setting}={self._account.limits[self._kind]:g}"

    @property
    def more(self) -> str:
        """The limit that a yes would set, in words."""
        return in_words(self._kind, self._more)

    def allow_more(self) -> None:
        """Allow as much again as at first, beyond what is spent, until the scope or the program ends."""
        self._account.limits[self._kind] = self._more
        self._account.warned.discard(self._kind)


@dataclass
class Reservation:
    """The amounts held back for a request. Only the first call of `settle` counts."""

    _holds: list[tuple[Account, int]]
    max_tokens: int
    seconds: float  # infinite where no budget is in time
    is_open: bool = True

    def settle(self, usage: Usage, cost_usd: float | None, seconds: float) -> None:
        """Charge what the request took in the end; an unknown price charges no money."""
        if self.is_open:
            self.is_open = False
            amounts: Amounts = {"usd": cost_usd or 0.0, "tokens": usage.context_tokens, "seconds": seconds}
            for account, number in self._holds:
                account.settle(number, amounts)


class Budgets:
    """The accounts of one agent, the nearest first. From the share `warn_at` of a limit on there is one warning."""

    def __init__(self, accounts: Sequence[Account] = (), *, warn_at: float = 0.8) -> None:
        self.accounts = tuple(accounts)
        self.warn_at = warn_at
        self._reported: set[str] = set()

    def within(self, account: Account) -> Budgets:
        """Return the budgets of a turn or a child: its own account, and these, to which its charges roll up."""
        inner = Budgets((account, *self.accounts), warn_at=self.warn_at)
        inner._reported = self._reported
        return inner

    @property
    def is_limited(self) -> bool:
        return any(account.limits for account in self.accounts)

    def limit(self, scope: str, kind: Kind) -> float | None:
        return next((account.limits.get(kind) for account in self.accounts if account.scope == scope), None)

    def limits(self) -> Iterator[tuple[Account, Kind, float, float]]:
        """Yield each limit: its account, its kind, its amount, and what of it is spent or held."""
        for account in self.accounts:
            spent = account.spent() if account.limits else {}
            for kind, limit in account.limits.items():
                yield account, kind, limit, spent.get(kind, 0.0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as locks:
            for account in self.accounts:
                locks.enter_context(account.locked())
            yield

    def reserve(self, prompt_tokens: Callable[[], int], max_tokens: int, info: ModelInfo) -> Reservation:
        """Hold the worst case of a request, its reply as long as the budgets allow, up to `max_tokens`.

        Raises `OverBudget`, and `StorageError` where the day's ledger cannot be kept.
        """
        if not self.is_limited:
            return Reservation([(account, account.hold({})) for account in self.accounts], max_tokens, math.inf)
        prompt = prompt_tokens()
        per_prompt, per_reply = info.prices.max_rates(prompt) if info.prices else (0.0, 0.0)

        def worst(reply: int) -> Amounts:
            return {"usd": prompt * per_prompt + reply * per_reply, "tokens": prompt + reply}

        min_tokens, seconds = min(MIN_REPLY_TOKENS, max_tokens), math.inf
        with self._locked():
            for account, kind, limit, spent in self.limits():
                remaining = limit - spent - worst(0).get(kind, 0.0)
                if kind == "seconds":
                    seconds = min(seconds, remaining)
                elif kind == "tokens" or (kind == "usd" and per_reply):
                    rate = per_reply * (1 + 1e-9) if kind == "usd" else 1
                    max_tokens = min(max_tokens, int(remaining / rate))
                if max_tokens < min_tokens or (kind in ("usd", "seconds") and remaining <= 0):
                    needed = in_words(kind, worst(min_tokens)[kind]) if kind in ("usd", "tokens") else "any time"
                    raise OverBudget(account, kind, f"the next request could take {needed}")
            holds = [(account, account.hold(worst(max_tokens))) for account in self.accounts]
        return Reservation(holds, max_tokens, seconds)

    def begin_calls(self, calls: int) -> None:
        """Charge calls that are about to run. Raises `OverBudget`, and charges none, where not all of them may."""
        with self._locked():
            for account, kind, limit, spent in self.limits():
                if kind == "calls" and spent + calls > limit:
                    raise OverBudget(account, "calls", f"{calls} more asked for")
            self.charge({"calls": calls})

    def charge(self, amounts: Amounts) -> None:
        for account in self.accounts:
            account.settle(account.hold({}), amounts)

    def check(self) -> None:
        """Raise `OverBudget` where money, tokens or time are used up."""
        for account, kind, limit, spent in self.limits():
            if kind != "calls" and spent >= limit:
                raise OverBudget(account, kind, "the next request would come on top")

    def recall(self, amounts: Amounts) -> None:
        """Charge only the session for what its log has, because the day's ledger has that already."""
        Budgets([account for account in self.accounts if account.scope == "session"]).charge(amounts)

    def is_first(self, what: str) -> bool:
        """Return True the first time it is called for `what`."""
        is_first = what not in self._reported
        self._reported.add(what)
        return is_first

    def warnings(self, info: ModelInfo | None = None) -> list[str]:
        """Return the new warnings: a budget that is nearly used up, or one that cannot be held."""
        warnings, has_money = [], False
        for account, kind, limit, spent in self.limits():
            has_money |= kind == "usd"
            if kind not in account.warned and spent >= self.warn_at * limit:
                account.warned.add(kind)
                used = f"{in_words(kind, spent)} of {in_words(kind, limit)}"
                warnings.append(f"The {account.scope}'s budget is {spent / limit:.0%} used: {used}.")
        if info is not None and info.prices is None and has_money and self.is_first(info.id):
            warnings.append(
                f"The price of {info.id} is not known: no budget in money holds for it. Set its prices in "
                f'[models.{info.provider}."{info.id}"], or a budget in tokens (budgets.session_tokens).'
            )
        return warnings


def most_tokens(request: Request, info: ModelInfo) -> int:
    """Return the most tokens that a prompt can have of which the provider has counted nothing."""
    size = request_size(request, info)
    text = size.ascii * min(1.0, TOKENS_PER_BYTE * max(1.0, info.token_factor))
    media = size.media * MEDIA_MARGIN + TOKENS_PER_MESSAGE * len(request.messages)
    return int(text + size.foreign * TOKENS_PER_FOREIGN_BYTE + media) + 1


def added(*all: Amounts) -> Amounts:
    total: Amounts = {}
    for amounts in all:
        for kind, amount in amounts.items():
            total[kind] = total.get(kind, 0.0) + amount
    return total


def in_words(kind: Kind, amount: float) -> str:
    match kind:
        case "usd":
            return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"
        case "seconds":
            return f"{amount:,.0f} s"
        case _:
            return f"{amount:,.0f} {kind}" if amount != 1 else f"1 {kind[:-1]}"
