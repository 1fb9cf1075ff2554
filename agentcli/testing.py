"""A model that plays a script, for tests of programs that use the library. They need no key and no network.

model = ScriptedModel([ScriptedReply(tool_calls=[ScriptedCall("weather", {"city": "Oslo"})]), "It rains."])
done = Agent(model, tools=[weather]).run_sync("How is the weather in Oslo?")
assert done.text == "It rains."
assert "How is the weather" in model.requests[0].messages[-1].text
"""

from agentcli.errors import UsageError, did_you_mean
from agentcli.llm.provider import Request
from agentcli.llm.providers.scripted import ScriptedCall, ScriptedError, ScriptedProvider, ScriptedReply

__all__ = ["ScriptedCall", "ScriptedError", "ScriptedModel", "ScriptedReply"]


class ScriptedModel(ScriptedProvider):
    """A provider that gives the next of its replies for each request, and keeps the request in `requests`.

    A reply is a text, a `ScriptedReply`, or a function that makes one of these of the request's messages. A request
    that comes after the last reply fails, and so does a reply that calls a tool that its request does not offer.
    """

    def _next(self, request: Request) -> ScriptedReply:
        reply, offered = super()._next(request), [tool.name for tool in request.tools]
        for name in (call.name for call in reply.tool_calls):
            if name not in offered:
                known = ", ".join(offered) or "none"
                hint = did_you_mean(name, offered)
                raise UsageError(f"The script calls {name!r}{hint}, but the request offers other tools: {known}.")
        return reply
