"""Clients of a simulated scheduler that ask over HTTP: the real application, called inside the process.

They have keys of several scopes and offices, some of them rotated or deleted. Each answer is compared with what the
clients know by themselves: who may do what, whose a job is, and what was made before. Some follow events as a stream,
or read what runs have written (`http_readers.py`).
"""

import asyncio
import json
from collections.abc import Callable, MutableMapping
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import anyio.to_thread
from starlette.types import ASGIApp

from nextslot.scheduler import Scheduler
from nextslot.server.app import create_app
from nextslot.system.instant import Instant
from nextslot.testing.simulation import check_reads, plan, world
from nextslot.testing.simulation.clients import Clients
from nextslot.testing.simulation.surroundings import OFFICES, Endpoints
from nextslot.testing.simulation.world import SimulatedScheduler
from tests.simulation.http_readers import ARTIFACT, HttpFollowers, Listen, Writings

LENGTH = 24
SCOPES = ("read", "submit", "operate", "admin")
# A key with the scope `submit` cancels what keys of its name have made, and nothing else.
CANCEL = ("POST", "/api/jobs/{job}/cancel")
# Which scope each request needs, and how it is made; `{job}` and `{run}` are those of some job.
REQUESTS = {
    "read": (
        ("GET", "/api/jobs/{job}"),
        ("GET", "/api/jobs/{job}/why"),
        ("GET", "/api/job-runs/{run}"),
        ("GET", "/api/jobs"),
        ("GET", "/api/job-runs"),
        ("GET", "/api/queue?office_id={office}"),
        ("GET", "/api/jobs?office_id={office}"),
    ),
    "submit": (("POST", "/api/jobs"), ("POST", "/api/jobs"), ("POST", "/api/jobs/{job}/rerun"), CANCEL),
    "operate": (
        ("POST", "/api/jobs/{job}/move"),
        ("PATCH", "/api/jobs/{job}"),
        ("PUT", "/api/queue/order"),
        ("POST", "/api/job-runs/{run}/retry"),
    ),
    "admin": (("GET", "/api/keys"), ("GET", "/api/audit")),
}
BODIES: dict[str, Any] = {"move": {"place": 2}, "{job}": {"title": "another"}, "retry": {}, "cancel": {}, "rerun": {}}
# What somebody else may have done meanwhile, and what a scheduler without its disk answers.
OVERTAKEN, ABSENT = {404, 409, 422}, {503}


class HeldKey(NamedTuple):
    """A key as its holder knows it."""

    key_id: str
    text: str
    scope: str
    office_id: str | None
    # None: it opens. Otherwise since when it does not.
    ended_at: float | None = None


class Answer(NamedTuple):
    status: int
    content: Any
    raw: bytes = b""


class HttpClients(Clients):
    def __init__(self, now: Callable[[], Instant], endpoints: Endpoints) -> None:
        super().__init__(now, endpoints)
        self.held: list[HeldKey] = []
        self.runs: dict[str, str] = {}
        # By job: the name of the key that made it.
        self.makers: dict[str, str | None] = {}
        self._app: tuple[Scheduler, ASGIApp] | None = None
        # The jobs whose runs write files, and what they have written.
        self.writers: list[str] = []
        self.writings = Writings()
        self.followers: HttpFollowers = HttpFollowers(lambda: self.has_purged, self._open, self._ended_at, now)

    @property
    def scheduler(self) -> SimulatedScheduler:
        return self._scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Scheduler) -> None:
        """Takes a scheduler before it starts; at the beginning there is none."""
        if isinstance(scheduler, SimulatedScheduler):
            self._scheduler = scheduler
            self.writings.register(scheduler)

    def application(self) -> ASGIApp:
        """Returns the application of the scheduler that lives now."""
        if self._app is None or self._app[0] is not self.scheduler:
            self._app = (self.scheduler, create_app(self.scheduler))
        return self._app[1]

    async def ask(
        self, method: str, path: str, key: str | None, body: Any = None, idempotency_key: str | None = None
    ) -> Answer:
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        headers += [(b"x-api-key", key.encode())] if key is not None else []
        headers += [(b"idempotency-key", idempotency_key.encode())] if idempotency_key is not None else []
        content = b"" if body is None else json.dumps(body).encode()
        return await _called(self.application(), method, path, headers, content)

    async def _http_key(self, chance: Random) -> str:
        """Makes a key; the first is an admin's. Or rotates or deletes one, which then does not open any more."""
        others = [one for one in self.held if one.ended_at is None and one.scope != "admin"]
        if not self.held:
            return await self._make_key("admin", None)
        if len(others) < 4 or chance.random() < 0.4:
            office_id = chance.choice((None, *OFFICES[1:]))
            return await self._make_key(chance.choice(SCOPES[:3]), office_id)
        one, is_rotated = chance.choice(others), chance.random() < 0.5
        self.held.remove(one)  # Until the answer comes, it may open or not.
        if is_rotated:
            _, text = await self.scheduler.keys.rotate(one.key_id, 0.0)
            self.held.append(one._replace(text=text))
        else:
            await self.scheduler.keys.delete(one.key_id)
        self.held.append(one._replace(ended_at=asyncio.get_running_loop().time()))
        for known in self.held[-2:] if is_rotated else self.held[-1:]:
            answer = await self.ask("GET", "/api/me", known.text)
            if answer.status not in (401 if known.ended_at is not None else 200, *ABSENT):
                self.broken.append(f"{known} was answered {answer.status} after it was rotated or deleted")
        return "rotated" if is_rotated else "deleted"

    async def _make_key(self, scope: str, office_id: str | None) -> str:
        key, text = await self.scheduler.keys.create(scope, [scope], office_id)
        self.held.append(HeldKey(key.key_id, text, scope, office_id))
        return f"{scope} {office_id}"

    async def _http(self, chance: Random) -> str:
        """Sends a request, with a key that is valid or not, about a job of the key's office or of another."""
        if not self.held:
            return "nothing"
        needed = chance.choice(SCOPES)
        method, path = chance.choice(REQUESTS[needed])
        ended = [one for one in self.held if one.ended_at is not None]
        open_ = [one for one in self.held if one.ended_at is None]
        held = chance.choice(open_) if chance.random() < 0.8 else chance.choice((*ended, None))
        job_id = chance.choice(list(self.offices) or ["nobody"])
        office_id = self.offices.get(job_id, "nowhere")
        run = await self.scheduler.run_of(job_id) if "{run}" in path and job_id in self.offices else None
        if "{run}" in path and run is None:
            return "nothing"
        where = path.format(job=job_id, run=run.run_id if run else "", office=office_id)
        body = self._body(chance, path, held, job_id)
        own = held.office_id if held is not None else None
        about = office_id if "{" in path or "order" in path else None
        answer = await self.ask(method, where, held.text if held else None, body)
        is_own = own is None or about in (None, own)
        if (method, path) == CANCEL and self.makers.get(job_id) != "submit":
            needed = "operate" if is_own and answer.status != 404 else needed
        self._judge(f"{method} {path}", answer, held, needed, is_own)
        self._judge_content(f"{method} {path}", answer, own)
        if method == "POST" and path == "/api/jobs" and answer.status == 201:
            self.jobs.append(answer.content["job_id"])
            self.offices[answer.content["job_id"]] = answer.content["office_id"]
            self.makers[answer.content["job_id"]] = answer.content["created_by"]
        return f"{where} {answer.status}"

    def _body(self, chance: Random, path: str, held: HeldKey | None, job_id: str) -> Any:
        if path == "/api/jobs":
            office_id = held.office_id if held is not None else None
            new = {"job_type": "work", "params": {"do": "ok", "seconds": chance.choice((0.0, 5.0))}}
            return (
                new
                if office_id and chance.random() < 0.5
                else {**new, "office_id": office_id or chance.choice(OFFICES)}
            )
        if path.endswith("order"):
            return {"job_ids": [job_id]}
        return BODIES.get(path.rpartition("/")[2])

    def _judge(self, what: str, answer: Answer, held: HeldKey | None, needed: str, is_own: bool) -> None:
        """Compares an answer with what this key may do."""
        if answer.status in ABSENT:
            return
        wanted = {200, 201, 202, 204} | OVERTAKEN
        if held is None or held.ended_at is not None:
            wanted = {401}
        elif SCOPES.index(held.scope) < SCOPES.index(needed) or (needed == "admin" and held.office_id is not None):
            wanted = {403}
        elif not is_own:
            wanted = {404}
        if answer.status not in wanted:
            self.broken.append(
                f"{what} with {held} was answered {answer.status}, not {sorted(wanted)}: {answer.content}"
            )
        if answer.status >= 400 and not (isinstance(answer.content, dict) and answer.content.get("detail")):
            self.broken.append(f"{what} was refused without a word: {answer}")

    def _judge_content(self, what: str, answer: Answer, own: str | None) -> None:
        """Finds anything of another office in an answer to the key of one office."""
        if own is None or answer.status >= 300 or not isinstance(answer.content, dict):
            return
        shown = [answer.content, *answer.content.get("items", ())]
        foreign = [one for one in shown if isinstance(one, dict) and one.get("office_id", own) != own]
        if foreign:
            self.broken.append(f"{what} shows {own} something of another office: {foreign[0]}")

    async def _http_once(self, chance: Random) -> str:
        """Submits with an idempotency key and asks again, until the answer is known: there is one job."""
        held = next((one for one in self.held if one.ended_at is None and one.scope != "read"), None)
        if held is None:
            return "nothing"
        body = {"job_type": "work", "params": {"do": "ok"}, "office_id": held.office_id or "a"}
        key, made = f"once-{chance.getrandbits(40)}", []
        for _ in range(3):
            answer = await self.ask("POST", "/api/jobs", held.text, body, key)
            if answer.status in (200, 201):
                made.append(answer.content["job_id"])
                self.offices[made[-1]] = answer.content["office_id"]
                self.makers[made[-1]] = answer.content["created_by"]
        if len(set(made)) > 1:
            self.broken.append(f"the key {key} made {made}")
        self.jobs += [job_id for job_id in made[:1] if job_id not in self.jobs]
        return str(len(made))

    # Streams of events.

    async def _open(self, key: str, after: int, listen: Listen) -> int:
        headers = [(b"host", b"127.0.0.1"), (b"x-api-key", key.encode()), (b"accept", b"text/event-stream")]
        headers.append((b"last-event-id", str(after).encode()))
        return (await _called(self.application(), "GET", "/api/events", headers, b"", listen)).status

    def _ended_at(self, key: str) -> float | None:
        """Returns since when a key does not open any more: None if it does, just now if nobody knows."""
        known = next((one for one in self.held if one.text == key), None)
        return asyncio.get_running_loop().time() if known is None else known.ended_at

    async def _http_follow(self, chance: Random) -> str:
        open_ = [one for one in self.held if one.ended_at is None]
        if not open_:
            return "nothing"
        held = chance.choice(open_)
        last = await self.scheduler._access.read(check_reads.last_event)
        after = last if self.has_purged else chance.choice((0, last))
        self.followers.add_reader(held.text, held.office_id, after, chance.getrandbits(32))
        return f"{held.office_id} {after}"

    # Files.

    async def _http_write(self, chance: Random) -> str:
        """Submits a job whose run writes some lines to its log, and all of them to an artifact."""
        held = next((one for one in self.held if one.ended_at is None and one.scope != "read"), None)
        if held is None:
            return "nothing"
        params = {"seconds": chance.choice((0.0, 1.0, 30.0)), "lines": chance.choice((0, 1, 4))}
        body = {"job_type": "writer", "params": params, "office_id": held.office_id or chance.choice(OFFICES)}
        answer = await self.ask("POST", "/api/jobs", held.text, body)
        if answer.status == 201:
            job_id = answer.content["job_id"]
            self.jobs.append(job_id)
            self.writers.append(job_id)
            self.offices[job_id], self.makers[job_id] = answer.content["office_id"], answer.content["created_by"]
        return str(answer.status)

    async def _http_read_file(self, chance: Random) -> str:
        """Reads the log or the artifact of a run: its office gets all that the run has written, others get nothing."""
        if not self.writers or not self.held:
            return "nothing"
        job_id, held = chance.choice(self.writers[-4:]), chance.choice(self.held)
        run = await self.scheduler.run_of(job_id)
        if run is None:
            return "nothing"
        what = chance.choice(("log", f"artifacts/{ARTIFACT}"))
        scheduler, known = self.scheduler, self.writings.by_run.get(run.run_id)
        answer = await self.ask("GET", f"/api/job-runs/{run.run_id}/{what}", held.text)
        self._judge(f"GET {what}", answer, held, "read", held.office_id in (None, self.offices[job_id]))
        if scheduler is not self.scheduler or known is not self.writings.by_run.get(run.run_id):
            return "meanwhile"  # The run has written, or another scheduler lives.
        is_here = known is not None and known.directory == scheduler._path.parent
        problem = self.writings.problem(run.run_id, answer.raw, scheduler._path.parent)
        if answer.status == 200 and problem is not None and (what == "log" or is_here):
            self.broken.append(f"the {what} of a run: {problem}")
        must_be = is_here and known is not None and known.is_all and run.status == "COMPLETED" and not self.has_purged
        if answer.status == 404 and must_be and held.office_id in (None, self.offices[job_id]):
            self.broken.append(f"the {what} of {run.run_id} is gone: {answer.content}")
        return f"{what} {answer.status}"


async def _called(
    app: ASGIApp,
    method: str,
    path: str,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    listen: Listen | None = None,
) -> Answer:
    """Calls the application; `listen` gets the parts of a stream as they come."""
    path, _, query = path.partition("?")
    scope: MutableMapping[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [*headers, (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8000),
    }
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[MutableMapping[str, Any]] = []
    over = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        if unread:
            return unread.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        if listen is not None and message["type"] == "http.response.body" and sent[0]["status"] == 200:
            await listen(message.get("body", b""))

    try:
        await app(scope, receive, send)
    finally:
        over.set()
    content = b"".join(message.get("body", b"") for message in sent)
    is_json = b"json" in dict(sent[0]["headers"]).get(b"content-type", b"")
    return Answer(sent[0]["status"], json.loads(content) if content and is_json else None, content)


def made(seed: int, length: int = LENGTH) -> list[plan.Action]:
    """Makes a plan in which about half of the clients ask over HTTP."""
    chance = Random(f"http {seed}")
    kinds = (
        "http_key",
        "http",
        "http",
        "http",
        "http_once",
        "http_follow",
        "http_write",
        "http_read_file",
        "http_read_file",
    )
    actions = [plan.Action("http_key", chance.getrandbits(32), 0.0) for _ in range(4)]
    for action in plan.make(seed, length):
        actions.append(action)
        if chance.random() < 0.8:
            actions.append(plan.Action(chance.choice(kinds), chance.getrandbits(32), chance.choice((0.0, 0.0, 2.0))))
    return actions


async def _at_once(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls what would be called in a thread. The options are those of threads."""
    return call(*arguments)


def simulate(seed: int, length: int = LENGTH) -> world.History:
    """Simulates one history of these clients. Files are read without threads, whose order no seed decides."""
    with mock.patch.object(asyncio, "to_thread", _at_once), mock.patch.object(anyio.to_thread, "run_sync", _at_once):
        return world.simulate(seed, made(seed, length), clients=HttpClients)
