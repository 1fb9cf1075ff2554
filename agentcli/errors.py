"""Every error agentcli raises on purpose.

A `UserError` is shown to the person, without a traceback; its message says what to do. A `ToolError` is shown to the
model as a failed result. A `ProviderError` (llm/errors.py) says that a request to a model has failed.
"""

import errno
from collections.abc import Iterable
from typing import Literal
from warnings import warn

ToolErrorKind = Literal[
    "timeout",
    "rate_limit",
    "resource_error",
    "transient_error",
    "permission_denied",
    "invalid_parameters",
    "not_found",
    "validation_error",
    "execution_error",
    "internal_error",
    "dependency_error",
]

# These may pass by themselves; the others ask for another call, another setting, or a person.
RETRYABLE_KINDS: frozenset[ToolErrorKind] = frozenset(("timeout", "rate_limit", "resource_error", "transient_error"))


class AgentcliError(Exception):
    """Base of all errors raised on purpose. One that `is_retryable` may pass by itself; others are permanent."""

    is_retryable: bool = False

    @property
    def is_permanent(self) -> bool:
        return not self.is_retryable


class UserError(AgentcliError):
    """The person can fix this; the message says how."""

    exit_code = 1


class LoopError(UserError):
    """The model repeats the same call with the same result, and nobody can be asked about it."""


class UsageError(UserError):
    """A flag or an argument is wrong."""

    exit_code = 2


class NoModel(UsageError):
    """No model is set up; the message names the ways to get one."""


class NoKey(UsageError):
    """The key of `provider` is missing; `variable` is the environment variable for it."""

    def __init__(self, provider: str, variable: str) -> None:
        super().__init__(f"{provider} needs an API key. Set {variable}, or save one with agentcli login {provider}.")
        self.provider, self.variable = provider, variable


class ConfigError(UserError):
    """A setting is wrong; `file`, `line` (1-based, where known) and `key` say which."""

    exit_code = 2

    def __init__(self, message: str, *, file: str = "", line: int | None = None, key: str = "") -> None:
        place = f"{file}, line {line}" if line else file
        super().__init__(": ".join(part for part in (place, key, message) if part))
        self.file, self.line, self.key = file, line, key


class StorageError(UserError):
    """The session log could not be read or written."""


class NoSession(StorageError):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is no session {session_id!r}. To list the sessions: agentcli sessions list")


class AmbiguousSession(StorageError):
    """Several sessions have the given name, or ids that begin with it."""


class SessionInUse(StorageError):
    def __init__(self, session_id: str, *, refuses_take_over: bool = False) -> None:
        advice = (
            ", which does not give it up. Close it there."
            if refuses_take_over
            else ". Take it over with --take-over, which closes it there, continue in a copy with --fork-session, or "
            f"only read it (agentcli sessions show {session_id})."
        )
        super().__init__(f"Session {session_id} is open in another agentcli{advice}")
        self.session_id = session_id


class StreamMoved(StorageError):
    def __init__(self, stream_id: str) -> None:
        super().__init__(f"Another program took over the event stream {stream_id}. Nothing was added to it.")


class ToolError(AgentcliError):
    """A call of a tool failed; the message says what to do instead, and `line` is the text for the model.

    `code` is more specific than `kind` if possible (`ENOENT`, `404`), or else the same. `partial` is the tool's output
    before the failure. `retry_after` is the wait in seconds that a server asked for.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ToolErrorKind = "execution_error",
        code: str = "",
        retry_after: float | None = None,
        partial: str = "",
    ) -> None:
        super().__init__(message)
        self.kind: ToolErrorKind = kind
        self.code, self.retry_after, self.partial = code or kind, retry_after, partial
        self.is_retryable = kind in RETRYABLE_KINDS

    @property
    def line(self) -> str:
        """Return the error as the model reads it: `not_found (ENOENT): a.txt does not exist.`"""
        finer = f" ({self.code})" if self.code != self.kind else ""
        return f"{self.kind}{finer}: {self}"

    @property
    def told(self) -> str:
        warn("ToolError.told is now ToolError.line. The next release removes the old name.", DeprecationWarning, 2)
        return self.line


class Declined(ToolError):
    """The person declined the call, or `what`, perhaps with a comment."""

    def __init__(self, comment: str = "", what: str = "this call") -> None:
        reason = f" They said: {comment}" if comment else ""
        super().__init__(f"The user declined {what}.{reason}", kind="permission_denied")
        self.answer = f"declined: {comment}" if comment else "declined"


# Errors that would be the same at the next attempt; all others may pass.
_LASTING: dict[int, ToolErrorKind] = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "permission_denied"),
    **dict.fromkeys((errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR), "invalid_parameters"),
    errno.ENOENT: "not_found",
}


def kind_of(error: OSError) -> ToolErrorKind:
    """Return the kind of `ToolError` that an error of the system becomes."""
    return _LASTING.get(error.errno or 0, "resource_error")


def errno_name(error: OSError) -> str:
    """Return the name of a system error, such as `ENOSPC`; empty for an error without a number."""
    return errno.errorcode.get(error.errno or 0, "")


OUT_OF_MEMORY = (
    "Out of memory or threads. Close other programs, or raise a limit (ulimit -v, ulimit -u, a container's)."
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the system has no more memory, or no more threads, which need memory."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)` if a name is nearly one of the known names, else an empty text."""
    return f" (did you mean {near}?)" if (near := nearest(name, known)) else ""


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.65) -> str:
    """Return the known name that is nearly `name`, or an empty string; a higher `cutoff` is stricter."""
    import difflib  # imported late: it takes 5 ms, and most starts have no mistake

    by_lower_case = {one.lower(): one for one in known}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[matches[0]] if matches else ""
