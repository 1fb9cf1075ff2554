"""Turns a library caller's functions, sync or async, into tools, and their failures into results."""

import asyncio
import inspect
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, get_origin, get_type_hints, overload

import msgspec

from agentcli.errors import ToolError, ToolErrorKind, UsageError
from agentcli.llm.messages import Document, Image, Text
from agentcli.tools.tool import Effect, OutputLevel, RetryRule, Tool, ToolContext, ToolOutput, schema_of

log = logging.getLogger(__name__)

LockKeys = Sequence[str] | Callable[[dict[str, Any]], Iterable[str]]


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    effect: Effect = "none",
    time_limit_s: float | None = 120.0,
    retry: RetryRule | None = None,
    is_idempotent: bool = False,
    output_level: OutputLevel | None = None,
    locks: LockKeys = (),
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    effect: Effect = "none",
    time_limit_s: float | None = 120.0,
    retry: RetryRule | None = None,
    is_idempotent: bool = False,
    output_level: OutputLevel | None = None,
    locks: LockKeys = (),
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Turn a function into a tool: the model sees its name, its docstring and its annotated parameters.

        @tool
        def weather(city: str, days: int = 1) -> str:
            "Tells the weather of a city."

    A sync function runs in a thread of its own. A returned text or `ToolOutput` is the result as it is; other data
    becomes JSON. A parameter annotated with `ToolContext`, or `ToolContext[MyDeps]`, gets the call's context, and the
    model does not see it. With `effect="foreign"` each call needs permission; with "none", no call does.

    A failed call is repeated according to `retry`, if the function has the effect "none" or `is_idempotent` (running it
    twice equals running it once). Without `retry`, only an idempotent function is repeated, up to three times. `locks`
    names arguments, or maps all of them to keys: calls that share a value or a key wait for each other, even those of
    other tools or, if the agent has `locks`, other programs. Raises `UsageError`.
    """

    def make(function: Callable[..., Any]) -> Tool:
        own_name = name or getattr(function, "__name__", "")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", own_name):
            raise UsageError(f"{own_name!r} is no name for a tool: give one with @tool(name=…).")
        arguments, context_name = _arguments_of(function, own_name)
        return Tool(
            own_name,
            description or inspect.getdoc(function) or own_name,
            arguments,
            _runner(function, arguments, context_name),
            effect,
            source="library",
            time_limit_s=time_limit_s,
            lock_keys=_lock_keys(own_name, locks, arguments) if locks else None,
            # A function may change anything, whatever effect it declares, so it is never repeated unasked.
            retry=retry or RetryRule(max_retries=3 if is_idempotent else 0),
            is_idempotent=is_idempotent,
            level=output_level,
        )

    return make if function is None else make(function)


def _runner(function: Callable[..., Any], arguments: type[msgspec.Struct], context_name: str) -> Callable[..., Any]:
    """Return a tool's `run`, which gives the call's arguments, and perhaps its context, to the function."""

    def call(values: Any, context: ToolContext) -> Any:
        with_context = {context_name: context} if context_name else {}
        return function(**{name: getattr(values, name) for name in arguments.__struct_fields__}, **with_context)

    async def call_async(values: Any, context: ToolContext) -> Any:
        return await call(values, context)

    return call_async if inspect.iscoroutinefunction(function) else call


def _lock_keys(name: str, locks: LockKeys, arguments: type[msgspec.Struct]) -> Callable[[Any], Iterable[str]]:
    """Return a tool's `lock_keys`. Raises `UsageError` for a name that is not one of its arguments."""
    if callable(locks):
        return lambda values: locks(msgspec.structs.asdict(values))
    if unknown := [lock for lock in locks if lock not in arguments.__struct_fields__]:
        known = ", ".join(arguments.__struct_fields__) or "none"
        raise UsageError(f"{name} cannot lock {unknown[0]!r}: its arguments are {known}.")
    return lambda values: [f"{lock}={getattr(values, lock)}" for lock in locks]


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[type[msgspec.Struct], str]:
    """Return a struct of the parameters, and the name of the one that takes the context. Raises `UsageError`."""
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise UsageError(f"The parameters of {name} cannot be read: {error}.") from error
    fields: list[Any] = []
    context_name = ""
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"{name} cannot be a tool: {parameter} has no name that a model could give.")
        if parameter.name not in hints:
            raise UsageError(f"{name} cannot be a tool: annotate {parameter.name}, such as {parameter.name}: str.")
        kind = hints[parameter.name]
        if ToolContext in (kind, get_origin(kind)):
            context_name = parameter.name
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, parameter.default))
    try:
        arguments = msgspec.defstruct(f"{name}_arguments", fields, frozen=True, kw_only=True)
        schema_of(arguments)
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{name} cannot be a tool: {error}") from error
    return arguments, context_name


def as_session_tool(own: Tool) -> Tool:
    """Return a caller's tool as a session needs it: its functions are async, and raise nothing but `ToolError`."""
    return replace(
        own,
        source="library" if own.source == "builtin" else own.source,
        run=_with_tool_errors(own.name, own.run, as_output),
        dry_run=own.dry_run and _with_tool_errors(own.name, own.dry_run),
        narrow=own.narrow and _with_tool_errors(own.name, own.narrow),
        lock_keys=own.lock_keys and _with_tool_errors(own.name, own.lock_keys, lambda keys: [str(key) for key in keys]),
    )


def as_output(value: Any) -> ToolOutput:
    """Return a function's value as a result: text as it is, data as JSON, None as no content."""
    match value:
        case ToolOutput():
            output = value
        case None | str():
            output = ToolOutput(value or "")
        case [*parts] if parts and all(isinstance(part, Text | Image | Document) for part in parts):
            output = ToolOutput(tuple(parts))
        case _:
            encoded = msgspec.json.encode(value, enc_hook=str)
            output = ToolOutput(encoded.decode(), msgspec.json.decode(encoded))
    if isinstance(output.content, str):  # neither the log nor a request can carry half characters
        output = msgspec.structs.replace(output, content=output.content.encode(errors="replace").decode())
    return output


def _with_tool_errors(
    name: str, function: Callable[..., Any], to_result: Callable[[Any], Any] = lambda value: value
) -> Callable[..., Awaitable[Any]]:
    """Return an async function that calls `function`, converts its value, and raises nothing but `ToolError`."""
    is_async = inspect.iscoroutinefunction(function)

    async def call(*arguments: Any) -> Any:
        try:
            value = await function(*arguments) if is_async else await in_thread(function, arguments)
            return to_result(await value if inspect.isawaitable(value) else value)  # a lambda may return a coroutine
        except ToolError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise log_failure(name, error) from error  # the call was not cancelled: the function raised this itself
        except (Exception, SystemExit) as error:  # whatever a caller's function raises ends only this call
            raise log_failure(name, error) from error

    return call


def log_failure(name: str, error: BaseException) -> ToolError:
    """Log an error that a caller's function raised, and return it as the error of the call."""
    log.error("the tool %s failed", name, exc_info=error)
    try:
        text = f": {error}" if str(error) else ""
    except Exception:  # noqa: BLE001  # an exception's own `__str__` may fail
        text = ""
    kind: ToolErrorKind = "timeout" if isinstance(error, TimeoutError) else "execution_error"
    return ToolError(f"{name} failed: {type(error).__name__}{text}", kind=kind)


async def in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a sync function in a daemon thread, and return its value or raise its error."""
    loop, ended = asyncio.get_running_loop(), Future[tuple[Any, BaseException | None]]()
    ended.set_running_or_notify_cancel()  # a cancelled call no longer cancels it: the thread sets its result
    variables = copy_context()  # the function sees the caller's context variables

    def emit_soon(emit: Callable[[str], None], text: str) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(emit, text)

    def work() -> None:
        try:
            ended.set_result((variables.run(function, *safe_arguments), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            ended.set_result((None, error))

    def with_safe_emit(argument: Any) -> Any:  # `emit` must run in the loop's thread
        is_context = isinstance(argument, ToolContext)
        return replace(argument, emit=partial(emit_soon, argument.emit)) if is_context else argument

    safe_arguments = list(map(with_safe_emit, arguments))
    # An executor is not used, because the program would wait for its threads before it exits.
    threading.Thread(target=work, name="agentcli-tool", daemon=True).start()
    # The error is passed on as a value, because a future does not accept every exception (`StopIteration`).
    value, error = await asyncio.wrap_future(ended)
    if error is not None:
        raise error
    return value
