"""Every error agentcli raises on purpose.

A `UserError` is shown to the person, without a traceback; its message says what to do. A `ToolError` is shown to the
model as a failed result. A `ProviderError` (llm/errors.py) says that a request to a model has failed.
"""

import errno
from collections.abc import Iterable
from typing import Literal
from warnings import warn

ToolErrorKind = Literal[
    "timeout", "rate_limit", "resource_error", "transient_error", "permission_denied", "invalid_parameters",
    "not_found", "validation_error", "execution_error", "internal_error", "dependency_error",
]  # fmt: skip

# These may pass by themselves; the others ask for another call, another setting, or a person.
RETRYABLE_KINDS: frozenset[ToolErrorKind] = frozenset(("timeout", "rate_limit", "resource_error", "transient_error"))


class AgentcliError(Exception):
    """Base of all errors raised on purpose. One that `is_retryable` may pass by itself; others are permanent."""

    is_retryable: bool = False

    @property
    def is_permanent(self) -> bool:
        return not self.is_retryable


class UserError(AgentcliError):
    """The person can mend this; the message says how."""

    exit_code = 1


class LoopError(UserError):
    """The model makes the same call again and again, with the same result, and nobody can be asked about it."""


class UsageError(UserError):
    """A flag or an argument is wrong."""

    exit_code = 2


class NoModel(UsageError):
    """No model is set up; the message names the ways to get one."""


class NoKey(UsageError):
    """A provider's key is not there; `provider` is its name, `variable` where the key is looked for."""

    def __init__(self, provider: str, variable: str) -> None:
        super().__init__(f"{provider} needs an API key. Set {variable}, or save one with agentcli login {provider}.")
        self.provider = provider
        self.variable = variable


class ConfigError(UserError):
    """A setting is wrong; `file`, `line` (1-based, where known) and `key` say which."""

    exit_code = 2

    def __init__(self, message: str, *, file: str = "", line: int | None = None, key: str = "") -> None:
        place = f"{file}, line {line}" if line else file
        super().__init__(": ".join(part for part in (place, key, message) if part))
        self.file = file
        self.line = line
        self.key = key


class StorageError(UserError):
    """The session log could not be read or written."""


class NoSession(StorageError):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is no session {session_id!r}. To list the sessions: agentcli sessions list")


class AmbiguousSession(StorageError):
    """Several sessions begin with what was given as an id, or have it as their name."""


class SessionInUse(StorageError):
    def __init__(self, session_id: str, *, was_asked: bool = False) -> None:
        advice = (
            ", which does not give it up. Close it there."
            if was_asked
            else ". Take it over with --take-over, which closes it there, continue in a copy with --fork-session, or "
            f"only read it (agentcli sessions show {session_id})."
        )
        super().__init__(f"Session {session_id} is open in another agentcli{advice}")
        self.session_id = session_id


class StreamMoved(StorageError):
    def __init__(self, stream_id: str) -> None:
        super().__init__(f"Another program took over the event stream {stream_id}. Nothing was added to it.")


class ToolError(AgentcliError):
    """A tool could not do what was asked; the message says what to do instead, `line` is what the model reads.

    `code` is finer than `kind` where there is something finer (`ENOENT`, `404`), else the same. `partial` is what the
    tool had by then. `retry_after` is in seconds, as a server asked for it.
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
        self.code = code or kind
        self.retry_after = retry_after
        self.partial = partial
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
    """The person said no to the call, and perhaps why."""

    def __init__(self, comment: str = "") -> None:
        reason = f" They said: {comment}" if comment else ""
        super().__init__(f"The user declined this call.{reason}", kind="permission_denied")
        self.answer = f"declined: {comment}" if comment else "declined"


# Errors that are the same at the next attempt; all others may pass.
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
    "Out of memory or threads. Raise the limit (`ulimit -v`, `ulimit -u`, that of the container), or close other"
    " programs."
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the system has no more memory, or no more threads, each of which takes some."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)` if a name is nearly one of the known names, else an empty text."""
    return f" (did you mean {near}?)" if (near := nearest(name, known)) else ""


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.65) -> str:
    """Return the known name that is nearly `name`, or an empty string; a higher `cutoff` is stricter."""
    import difflib  # 5 ms that a start without a mistake need not wait for

    by_small_letters = {one.lower(): one for one in known}
    matches = difflib.get_close_matches(name.lower(), by_small_letters, n=1, cutoff=cutoff)
    return by_small_letters[matches[0]] if matches else ""
