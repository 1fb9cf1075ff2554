"""Shows a terminal's session on a web page (`/remote`). Questions appear on both; the first answer applies.

The page is that of `agentcli serve`, but for one session, and ends with the terminal. A link works once: the page
exchanges the code in the link for a token, which it keeps until its tab is closed.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentcli.agent import events
from agentcli.agent.interfaces import EventStore
from agentcli.agent.ops import Prompt
from agentcli.conversation.mentions import typed_text
from agentcli.errors import UserError
from agentcli.frontends import json_input
from agentcli.frontends.hosts import OpenRequest, OpenSession, UsageStore
from agentcli.frontends.http.hosted import HostedSession
from agentcli.frontends.http.hosting import Hosting
from agentcli.frontends.http.requests import Guard, HttpError, bearer_of, error_answer, json_answer, token_hash
from agentcli.frontends.http.routes import Routes
from agentcli.frontends.http.server import http_server, listen_tcp
from agentcli.frontends.http.stream import StreamWriter
from agentcli.settings.structs import ServeTokenSettings

PAIR_PATH = "/v1/pair"
ShowText = Callable[[str], None]


class SharedSession(HostedSession):
    """A terminal's session, which continues when its page is closed. `on_prompt` shows the page's prompts there."""

    is_owner = False

    def __init__(self, opened: OpenSession, writer: StreamWriter, on_prompt: ShowText) -> None:
        super().__init__(opened, writer, on_given_up=lambda session_id: None)
        self._on_prompt = on_prompt

    async def _submit(self, prompt: Prompt, stream_id: str) -> None:
        if not self._session.is_busy:  # otherwise the terminal shows the prompt as a queued message
            self._on_prompt(typed_text(prompt.blocks))
        await super()._submit(prompt, stream_id)

    async def carry_out(self, request: json_input.Control) -> None:
        question = self._session.open_questions.get(getattr(request, "id", ""))  # None if it answers no question
        await super().carry_out(request)
        if question is not None:  # the notice explains why the question disappears from the terminal
            is_no = isinstance(request, json_input.DenyControl)
            done = "Answered" if isinstance(question, events.Question) else "Declined" if is_no else "Allowed"
            self._session.publish(events.Notice(f"{done} on the page: {question.title}"))


class Remote:
    """Serves the page of one open session. `on_notice` and `on_prompt` show its events and prompts in the terminal."""

    def __init__(
        self, opened: OpenSession, store: UsageStore, stream: EventStore, *, on_notice: ShowText, on_prompt: ShowText
    ) -> None:
        self.session_id, self._opened = opened.session.id, opened
        self._on_notice, self._on_prompt = on_notice, on_prompt

        async def refuse(request: OpenRequest) -> OpenSession:
            raise UserError("This page shows one session. To start others: agentcli serve")

        # No accounts, and no closing of idle sessions, because the session belongs to the terminal.
        self._hosting = Hosting(refuse, store, stream, account_of=lambda user: None, idle_s=float("inf"))
        self._code = ""  # the code in the newest link, until it is used

    async def start(self, address: str) -> None:
        """Serve the page on a free port of one of this machine's addresses. Raises `UserError` if that fails."""
        self.address = address
        try:
            listener, self._url = await asyncio.to_thread(listen_tcp, address, 0)
        except OSError as error:
            why = error.strerror or error
            raise UserError(f"Could not listen on {address}: {why}. Name an address of this machine.") from error
        writer = await StreamWriter.acquire(self._hosting.events, self.session_id)
        shared = SharedSession(self._opened, writer, self._on_prompt)
        await shared.begin(was_running=False)
        self._hosting.sessions[self.session_id] = shared
        ready = asyncio.Event()
        routes = Routes(self._hosting, cwd=self._opened.session.snapshot().workspace.cwd)
        app = routes.application(on_ready=ready.set, more=[Route(PAIR_PATH, self._pair, methods=["POST"])])
        self._guard = Guard(app, tokens=(), hosts=(address,))
        self._server = http_server(self._guard)
        listener.listen()
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        await ready.wait()

    def new_link(self) -> str:
        """Return a link to the page with a code that works once; an earlier unused link becomes invalid."""
        self._guard.remove_token(self._code)
        self._code = self._new_token(PAIR_PATH)
        return f"{self._url}/#once={self._code}"

    def _new_token(self, path: str) -> str:
        """Return a token that is valid for paths which begin with `path`."""
        token = secrets.token_urlsafe(18)  # 144 bits; short, for the sake of the QR code
        # The token is for no user (""), because the page is the person's own.
        self._guard.add_token(ServeTokenSettings(token_hash(token), ""), path)
        return token

    async def _pair(self, request: Request) -> Response:
        """Exchange the code in the link, a token for this request only, for a token of the session."""
        code = bearer_of(request)
        if not secrets.compare_digest(code, self._code):
            return error_answer(HttpError(401, "used", "This link was used already."))
        self._guard.remove_token(code)
        self._code = ""
        client = request.client.host if request.client else "somewhere"  # ASGI allows requests without an address
        self._on_notice(f"A browser at {client} opened this session's page. To close it: /remote off")
        token = self._new_token(f"/v1/sessions/{self.session_id}")
        return json_answer({"token": token, "session_id": self.session_id})

    async def aclose(self) -> None:
        await self._hosting.leave()
        self._server.should_exit = True
        with suppress(asyncio.CancelledError):
            await self._serving
