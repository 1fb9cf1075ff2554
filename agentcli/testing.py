"""A scripted model for tests of programs that use the library; such tests need no key and no network."""

from agentcli.errors import UsageError, did_you_mean
from agentcli.llm.provider import Request
from agentcli.llm.providers.scripted import ScriptedCall, ScriptedError, ScriptedProvider, ScriptedReply

__all__ = ["ScriptedCall", "ScriptedError", "ScriptedModel", "ScriptedReply"]


class ScriptedModel(ScriptedProvider):
    """A provider that gives the next of its replies for each request, and keeps the request in `requests`.

    A reply is a text, a `ScriptedReply`, or a function that makes one from the request's messages. A request
    that comes after the last reply fails, and so does a reply that calls a tool that its request does not offer.
    """

    def _next(self, request: Request) -> ScriptedReply:
        reply, offered = super()._next(request), [tool.name for tool in request.tools]
        if wrong := [call.name for call in reply.tool_calls if call.name not in offered]:
            hint, known = did_you_mean(wrong[0], offered), ", ".join(offered) or "none"
            raise UsageError(f"The script calls {wrong[0]!r}{hint}, but the tools of the request are: {known}.")
        return reply
