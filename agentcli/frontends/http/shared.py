"""Shows the session of a terminal on a web page (`/remote`): both ask the same questions, and the first answer counts.

The page is that of `agentcli serve`, for one session and as long as the terminal lives. A link opens it once: the
page exchanges the code in it for a token that it keeps until its tab is closed.
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


class SharedSession(HostedSession):
    """A session of a terminal, which goes on when its page ends; `on_prompt` shows the page's prompts there."""

    is_owner = False

    def __init__(self, opened: OpenSession, writer: StreamWriter, on_prompt: Callable[[str], None]) -> None:
        super().__init__(opened, writer, on_given_up=lambda session_id: None)
        self._on_prompt = on_prompt

    async def _submit(self, prompt: Prompt, stream_id: str) -> None:
        if not self._session.is_busy:  # else the terminal shows it as a message that waits
            self._on_prompt(typed_text(prompt.blocks))
        await super()._submit(prompt, stream_id)

    async def control(self, request: json_input.Control) -> None:
        asked = self._session.open_questions.get(getattr(request, "id", ""))
        await super().control(request)
        if asked is not None:  # the question vanishes from the terminal, which says why
            answer = "Declined" if isinstance(request, json_input.DenyControl) else "Allowed"
            answer = "Answered" if isinstance(asked, events.Question) else answer
            self._session.publish(events.Notice(f"{answer} on the page: {asked.title}"))


class Remote:
    """Serves the page of one open session; `on_notice` tells its terminal who opens it, `on_prompt` what is sent."""

    def __init__(
        self,
        opened: OpenSession,
        store: UsageStore,
        stream: EventStore,
        *,
        on_notice: Callable[[str], None],
        on_prompt: Callable[[str], None],
    ) -> None:
        self.session_id, self._opened = opened.session.id, opened
        self._on_notice, self._on_prompt = on_notice, on_prompt

        async def refuse(request: OpenRequest) -> OpenSession:
            raise UserError("This page shows one session. To start others: agentcli serve")

        # Without accounts, and never closed for being idle: the session is the terminal's.
        self._hosting = Hosting(refuse, store, stream, account_of=lambda user: None, idle_s=float("inf"))
        self._code = ""  # of the newest link, until it is used

    async def start(self, address: str) -> None:
        """Listen on a free port of an address of this machine. Raises `UserError` if that is impossible."""
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
        """Return the address of the page with a code that works once; an earlier link that nobody used ends."""
        self._guard.forget(self._code)
        self._code = self._let_in(PAIR_PATH)
        return f"{self._url}/#once={self._code}"

    def _let_in(self, path: str) -> str:
        """Return a new token for the paths that begin with `path`."""
        token = secrets.token_urlsafe(18)  # 144 bits; short, for the sake of the QR code
        self._guard.let_in(ServeTokenSettings(token_hash(token), ""), path)  # of no user: the page is the person's own
        return token

    async def _pair(self, request: Request) -> Response:
        """Exchange the code of a link for the token of a page."""
        code = bearer_of(request)
        if not secrets.compare_digest(code, self._code):
            return error_answer(HttpError(401, "used", "This link was used already."))
        self._guard.forget(code)
        self._code = ""
        client = request.client.host if request.client else "somewhere"  # as ASGI allows
        self._on_notice(f"A browser at {client} opened this session's page. To close it: /remote off")
        token = self._let_in(f"/v1/sessions/{self.session_id}")
        return json_answer({"token": token, "session_id": self.session_id})

    async def aclose(self) -> None:
        await self._hosting.leave()
        self._server.should_exit = True
        with suppress(asyncio.CancelledError):
            await self._serving
