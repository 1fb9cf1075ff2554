"""agentcli: a coding assistant for the terminal, and a library: `from agentcli import Agent, tool`."""

from agentcli.version import __version__ as __version__

TYPE_CHECKING = False  # importing typing takes longer than all that is here, and no signal is noted before its end
if TYPE_CHECKING:
    from agentcli.library.front import *  # noqa: F403  # all names, for type checkers
else:

    def __getattr__(name: str) -> object:
        """Return a name of the library, imported at its first use: `agentcli --version` need not wait 300 ms for it."""
        if name.startswith("__") and name != "__all__":  # asked for by Python's own modules, such as inspect
            raise AttributeError(f"module 'agentcli' has no attribute {name!r}")
        from agentcli.library import front

        return getattr(front, name) if name in ("__all__", *front.__all__) else front.find_moved(name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
