"""Whatever a route changes is in the audit log, with who asked (spec 18). A new route without a line here fails."""

import ast
import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

import nextslot
from nextslot import NewJob, QuotaExceeded, Scheduler, extension_api
from nextslot.config import load
from nextslot.configuration_reload import ConfiguredScheduler
from nextslot.domain import Key, RequestContext, Scope
from nextslot.executors.engines.engines import EngineSettings
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.executors.job_types import JobTypes
from nextslot.extensions.legacy.legacy_service import LegacyService
from nextslot.server.app import Options, application, routes_of
from nextslot.server.auth import SAFE
from nextslot.server.route_rules import rule_of
from nextslot.server.routing import Route
from nextslot.testing import Mailbox
from tests import databases
from tests.support import running_scheduler

from .support import Server, served

SOURCE = Path(nextslot.__file__).parent
EXTENSIONS = extension_api.used_by_server(configured=["gateway"])
ROUTES = [
    route
    for route in routes_of(application(Scheduler("sqlite:///never-opened.db", extensions=EXTENSIONS), Options()))
    if not set(route.methods or ()) <= SAFE
]
HOOK = "http://127.0.0.1:9/"
TOPIC = "how tides turn turbines"
ASKED = [{"role": "user", "content": TOPIC}]
# Each model has an upstream of its own, because a silent one is held back.
UPSTREAMS = "".join(
    f'[gateway.upstreams.{one}]\nbase_url = "{HOOK}"\nmodels = ["{one}"]\n' for one in ("chat", "text", "numbers")
)


class Case(NamedTuple):
    """A request that its route carries out. Names in braces are things that are made for it."""

    path: str
    body: Any = None
    status: int = 200
    # Made for it besides those that it names.
    besides: str = ""


CHANGES: dict[str, Case] = {
    "POST /api/jobs": Case("/api/jobs", {"job_type": "echo", "office_id": "quiet"}, 201),
    "POST /api/jobs/batch": Case("/api/jobs/batch", {"jobs": [{"job_type": "echo", "office_id": "quiet"}]}, 201),
    "POST /api/jobs/cancel": Case("/api/jobs/cancel", {"office_id": "quiet"}, besides="{queued}"),
    "POST /api/jobs/retry": Case("/api/jobs/retry", {"job_type": "fail"}, besides="{failed}"),
    "PATCH /api/jobs/{job_id}": Case("/api/jobs/{queued}", {"title": "new"}),
    "POST /api/jobs/{job_id}/cancel": Case("/api/jobs/{queued}/cancel", {}),
    "POST /api/jobs/{job_id}/move": Case("/api/jobs/{queued}/move", {"to": "front"}),
    "POST /api/jobs/{job_id}/rerun": Case("/api/jobs/{failed}/rerun", {}, 201),
    "PUT /api/queue/order": Case("/api/queue/order", {"job_ids": ["{queued}"]}),
    "POST /api/queue/pause": Case("/api/queue/pause", {"office_id": "quiet"}),
    "POST /api/queue/resume": Case("/api/queue/resume", {"office_id": "busy"}),
    "POST /api/queue/release": Case("/api/queue/release", {"resource": "{held}"}),
    "POST /api/job-runs/{run_id}/retry": Case("/api/job-runs/{run}/retry", {}, 201),
    "PUT /api/job-runs/{run_id}/checkpoint": Case("/api/job-runs/{running}/checkpoint", {"value": 1}),
    "POST /api/job-runs/{run_id}/park": Case("/api/job-runs/{running}/park", {"name": "go"}, 202),
    "POST /api/jobs/{job_id}/signals/{name}": Case("/api/jobs/{queued}/signals/go", {}, 201),
    "POST /api/job-groups": Case("/api/job-groups", {"mode": "parallel", "jobs": [{"job_type": "echo"}]}, 201),
    "POST /api/job-groups/{group_id}/cancel": Case("/api/job-groups/{group}/cancel", {}),
    "POST /api/direct/{name}": Case("/api/direct/echo", {"office_id": "busy"}),
    "POST /api/direct/{direct_id}/cancel": Case("/api/direct/{direct}/cancel"),
    "POST /story/generate": Case("/story/generate", {}),
    "POST /research/run": Case("/research/run", {"topic": TOPIC}, 502),
    "POST /jobs/story/trigger": Case("/jobs/story/trigger", {}, 202),
    "POST /jobs/research/trigger": Case("/jobs/research/trigger", {"topic": TOPIC}, 202),
    "POST /jobs/batch/trigger": Case("/jobs/batch/trigger", {"jobs": [{"type": "story"}]}, 202),
    "POST /jobs/{job_id}/cancel": Case("/jobs/{old}/cancel"),
    "POST /api/job-templates": Case("/api/job-templates", {"name": "new", "job_type": "echo"}, 201),
    "PUT /api/job-templates/by-name/{name:path}": Case("/api/job-templates/by-name/put", {"job_type": "echo"}, 201),
    "PUT /api/schedules/by-name/{name:path}": Case(
        "/api/schedules/by-name/put", {"template_id": "{template}", "cron_expression": "@daily"}, 201
    ),
    "PATCH /api/job-templates/{template_id}": Case("/api/job-templates/{template}", {"description": "new"}),
    "DELETE /api/job-templates/{template_id}": Case("/api/job-templates/{template}"),
    "POST /api/schedules": Case(
        "/api/schedules", {"template_id": "{template}", "name": "new", "cron_expression": "@daily"}, 201
    ),
    "PATCH /api/schedules/{schedule_id}": Case("/api/schedules/{schedule}", {"overlap": "skip"}),
    "DELETE /api/schedules/{schedule_id}": Case("/api/schedules/{schedule}"),
    "POST /api/schedules/{schedule_id}/trigger": Case("/api/schedules/{schedule}/trigger", {}, 201),
    "POST /api/webhooks": Case("/api/webhooks", {"url": HOOK}, 201),
    "PATCH /api/failures/{fingerprint}": Case("/api/failures/{failure}", {"muted": True}),
    "PATCH /api/webhooks/{webhook_id}": Case("/api/webhooks/{webhook}", {"enabled": False}),
    "DELETE /api/webhooks/{webhook_id}": Case("/api/webhooks/{webhook}", None, 204),
    "POST /api/webhooks/{webhook_id}/test": Case("/api/webhooks/{webhook}/test", None, 202),
    "POST /api/webhooks/{webhook_id}/rotate-secret": Case("/api/webhooks/{webhook}/rotate-secret"),
    "POST /api/webhook-deliveries/{delivery_id}/redeliver": Case(
        "/api/webhook-deliveries/{delivery}/redeliver", None, 202
    ),
    "POST /api/offices": Case("/api/offices", {}, 201),
    "PATCH /api/offices/{office_id}": Case("/api/offices/quiet", {"name": "new"}),
    "POST /api/offices/{office_id}/jobs": Case(
        "/api/offices/quiet/jobs", {"jobs": [{"description": "d", "role": "FE", "job_type": "echo"}]}, 201
    ),
    "POST /api/offices/{office_id}/jobs/cancel-all": Case("/api/offices/quiet/jobs/cancel-all", {}, 200, "{queued}"),
    "POST /api/offices/{office_id}/jobs/{job_id}/retry": Case("/api/offices/busy/jobs/{failed}/retry"),
    "POST /api/offices/{office_id}/jobs/{job_id}/cancel": Case("/api/offices/quiet/jobs/{queued}/cancel", {}),
    "PATCH /api/offices/{office_id}/jobs/{job_id}/priority": Case(
        "/api/offices/quiet/jobs/{queued}/priority", {"priority": 1}
    ),
    "PATCH /api/offices/{office_id}/scheduler/config": Case(
        "/api/offices/quiet/scheduler/config", {"maxConcurrentJobs": 0}
    ),
    "PUT /api/offices/{office_id}/roles/{role:path}": Case("/api/offices/quiet/roles/FE", {"timeout_ms": 1000}),
    "DELETE /api/offices/{office_id}/roles/{role:path}": Case("/api/offices/busy/roles/FE"),
    "POST /api/offices/{office_id}/scheduler/process": Case("/api/offices/quiet/scheduler/process"),
    "POST /api/config/reload": Case("/api/config/reload"),
    "POST /api/keys": Case("/api/keys", {"name": "new", "scopes": ["read"]}, 201),
    "POST /api/keys/{key_id}/rotate": Case("/api/keys/{key}/rotate", {"overlap_seconds": 1}),
    "PATCH /api/quotas/{office_id}": Case("/api/quotas/quiet", {"streams": 10}),
    "DELETE /api/keys/{key_id}": Case("/api/keys/{key}", None, 204),
    "POST /api/nodes/{node_id}/drain": Case("/api/nodes/{node}/drain", {"undo": True}),
    "DELETE /api/nodes/{node_id}": Case("/api/nodes/gone", None, 204),
    "POST /api/jobs/{job_id}/lost": Case("/api/jobs/{placed}/lost"),
    # Nothing listens at the addresses of the upstreams.
    "POST /v1/chat/completions": Case("/v1/chat/completions", {"model": "chat", "messages": ASKED}, 503),
    "POST /v1/completions": Case("/v1/completions", {"model": "text", "prompt": TOPIC}, 503),
    "POST /v1/embeddings": Case("/v1/embeddings", {"model": "numbers", "input": TOPIC}, 503),
}
# They only read: their scope is `read`, so the context of such a request can change nothing.
READS: dict[str, Case] = {
    "POST /jobs/monitor": Case("/jobs/monitor"),
    "POST /jobs/{job_id}/monitor": Case("/jobs/{old}/monitor"),
    "POST /jobs/{job_id}/dedup_check": Case("/jobs/{old}/dedup_check"),
}
# A dry run stores nothing, /mcp sends requests to the routes of its tools, and a link names itself in the audit log.
OTHERS = {"POST /api/jobs/dry-run", "POST /mcp", "POST /signal/{token}"}


def test_every_route_that_may_change_something_is_in_one_of_the_tables() -> None:
    readers = {name(route) for route in ROUTES if rule_of(route.endpoint).scope is Scope.READ}

    assert {name(route) for route in ROUTES} == CHANGES.keys() | READS.keys() | OTHERS
    assert readers - OTHERS == READS.keys()


async def test_every_change_through_any_route_is_in_the_audit_log_with_who_asked(tmp_path: Path) -> None:
    async with served(await prepared(tmp_path)) as server:
        world = await World.made(server)
        wrong = {name(route): await world.complaint(route) for route in ROUTES if name(route) not in OTHERS}

    assert {route: said for route, said in wrong.items() if said} == {}


async def test_a_direct_request_is_audited_when_it_is_accepted_and_not_when_it_is_refused(tmp_path: Path) -> None:
    async with served(await prepared(tmp_path)) as server:
        world = await World.made(server)
        before = await world.audited()

        streamed = await server.client.post(
            "/api/direct/echo", json={}, headers={**world.header(Scope.SUBMIT), "Accept": "text/event-stream"}
        )
        refused = await server.client.post("/api/direct/nothing", json={}, headers=world.header(Scope.SUBMIT))
        found = await world.audited()

    assert (streamed.status_code, refused.status_code) == (200, 422)
    assert [entry.target for entry in found[: len(found) - len(before)]] == ["/api/direct/echo"]


async def test_a_request_that_is_sent_again_is_audited_once(tmp_path: Path) -> None:
    async with served(await prepared(tmp_path)) as server:
        world = await World.made(server)
        before = await world.audited()
        headers = {**world.header(Scope.ADMIN), "Idempotency-Key": "again"}
        for path, body in (("/api/jobs", {"job_type": "echo"}), ("/api/keys", {"name": "k", "scopes": ["read"]})):
            answers = [await server.client.post(path, json=body, headers=headers) for _ in range(3)]
            assert [one.status_code for one in answers] == [201, 200, 200]

        assert len(await world.audited()) == len(before) + 2


@pytest.mark.virtual_time
async def test_a_request_that_only_reads_can_change_nothing(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        reader = scheduler.for_caller(RequestContext(is_read_only=True))

        for change in (reader.submit("work"), reader.pause(), reader.run_direct("work"), reader.offices.create("o")):
            with pytest.raises(TypeError, match="this request only reads"):
                await change
        assert (await reader.lists.jobs()).items == ()


def test_a_route_reaches_the_scheduler_for_its_caller_alone_and_a_service_the_store_by_one_path() -> None:
    """So a route that changes something and audits nothing cannot be written."""
    extensions = [*(SOURCE / "extensions").rglob("*.py")]
    servers = [*(SOURCE / "server").rglob("*.py"), *extensions]
    services = [*(SOURCE / "services").glob("*.py"), SOURCE / "scheduler" / "services.py", *extensions]
    owners = {file.name for file in servers if "app.state.scheduler" in file.read_text()}
    past_it = {file.name for file in services for call in calls_of(file) if ast.unparse(call).endswith("store.write")}
    further = {file.name for file in services for call in calls_of(file) if ast.unparse(call).endswith("write_more")}

    assert owners == {"app.py", "auth.py"}
    assert past_it == {"unit_of_work.py"}
    # The gateway ends the hold of an upstream that answers again.
    assert further <= {"bulk.py", "keys.py", "gateway_service.py"}


def calls_of(file: Path) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute))


def name(route: Route) -> str:
    (method,) = route.methods or {""}
    return f"{method} {route.path}"


async def prepared(directory: Path, upstreams: str = UPSTREAMS) -> Server:
    """Runs a server whose database has a node that has left."""
    gone = Scheduler(databases.url(directory), data=directory, node="gone")
    async with gone:
        pass
    (directory / "nextslot.toml").write_text(upstreams)
    variables = {**databases.variables(directory), "NEXTSLOT_WEBHOOKS__ALLOW_PRIVATE": "true"}
    configuration = load(directory, environment=variables)
    configured = ConfiguredScheduler(configuration, sender=Mailbox())
    return Server(configured.scheduler, Options(reload=configured.reload))


class World:
    """One of everything that a request may need, made when it does; and a key for each scope."""

    def __init__(self, server: Server, keys: dict[Scope, tuple[Key, str]]) -> None:
        self.server, self.scheduler, self.keys = server, server.scheduler, keys
        self._numbers = itertools.count()
        self.makers: dict[str, Callable[[], Awaitable[str]]] = {
            "queued": self.queued, "failed": self.failed, "run": self.run, "group": self.group, "direct": self.direct,
            "old": self.old, "template": self.template, "schedule": self.schedule, "webhook": self.webhook,
            "delivery": self.delivery, "key": self.key, "node": self.node, "held": self.held, "running": self.running,
            "failure": self.failure, "placed": self.placed,
        }  # fmt: skip

    @classmethod
    async def made(cls, server: Server) -> "World":
        scheduler = server.scheduler
        for office_id in ("quiet", "busy"):
            await scheduler.offices.create(office_id, max_concurrent_jobs=0)
        await scheduler.offices.change("busy", roles={"FE": {"timeout_seconds": 5}})
        for office_id in ("quiet", "default"):
            await scheduler.pause(office_id=office_id)
        broken = JobTypes()
        for job_type in ("story", "research"):
            broken.register(job_type, _broken, retry_policy={"max_attempts": 0})
        scheduler.job_types.replace(broken.names(), {name: broken.get(name) for name in broken.names()})
        scopes = (Scope.ADMIN, Scope.READ, Scope.SUBMIT, Scope.OPERATE)
        return cls(server, {scope: await scheduler.keys.create(f"the {scope} key", [scope]) for scope in scopes})

    def header(self, scope: Scope) -> dict[str, str]:
        return {"X-API-Key": self.keys[scope][1]}

    async def audited(self) -> Any:
        return (await self.scheduler.lists.audit(limit=500)).items

    async def complaint(self, route: Route) -> str | None:
        """Returns what is wrong with the audit entries after a request with a key of the route's scope."""
        scope, case = rule_of(route.endpoint).scope, CHANGES.get(name(route)) or READS[name(route)]
        assert scope is not None
        ids = {one: await make() for one, make in self.makers.items() if f"{{{one}}}" in str(case)}
        before = await self.audited()
        (method,) = route.methods or {""}
        path = case.path.format(**ids)
        answer: httpx2.Response = await self.server.client.request(
            method, path, json=_filled(case.body, ids), headers=self.header(scope)
        )
        entries = await self.audited()
        new = [(one.actor, one.key_id, one.action, one.target) for one in entries[: len(entries) - len(before)]]
        key = self.keys[scope][0]
        wanted = [] if name(route) in READS else [(key.name, key.key_id, name(route), path)]
        if answer.status_code != case.status:
            return f"{answer.status_code} {answer.text}"
        return None if new == wanted else f"the audit log has {new}"

    # What requests are about.

    async def queued(self) -> str:
        owner = self.keys[Scope.SUBMIT][0].name
        return (await self.scheduler.submit("echo", office_id="quiet", created_by=owner)).job_id

    async def failed(self) -> str:
        job = await self.scheduler.submit("fail", office_id="busy")
        await self.scheduler.wait(job.job_id)
        return job.job_id

    async def failure(self) -> str:
        found = (await self.scheduler.lists.job(await self.failed())).job.fingerprint
        assert found is not None
        return found

    async def run(self) -> str:
        run = await self.scheduler.run_of(await self.failed())
        assert run is not None
        return run.run_id

    async def running(self) -> str:
        job = await self.scheduler.submit("gate", office_id="busy")
        run = await self.scheduler.run_of(job.job_id)
        assert run is not None
        return run.run_id

    async def placed(self) -> str:
        """A job that is on its way to an engine, which starts nothing here."""
        directory = self.scheduler.files._files.directories[0].parent / "box"
        self.scheduler.job_types.engines.add(EngineSettings(name="box", kind="x", directory=directory), LocalEngine())
        self.scheduler.job_types.add_command("placed", ["true"], engine="box")
        return (await self.scheduler.submit("placed", office_id="busy")).job_id

    async def group(self) -> str:
        group = await self.scheduler.submit_group([NewJob(job_type="echo", office_id="quiet")])
        return group.group_id

    async def direct(self) -> str:
        direct_id = f"direct-{next(self._numbers)}"
        updates = self.scheduler.stream_direct("gate", office_id="busy", direct_id=direct_id)
        await anext(updates)
        self.on_the_line = asyncio.create_task(_followed(updates))
        return (await self.scheduler.direct(direct_id, "busy")).run_id

    async def old(self) -> str:
        old, _ = await self.scheduler.extension(LegacyService).trigger(NewJob(job_type="story"))
        return old.root.job_id

    async def template(self) -> str:
        return (await self.scheduler.templates.create(name=f"t{next(self._numbers)}", job_type="echo")).template_id

    async def schedule(self) -> str:
        made = await self.scheduler.schedules.create(
            template_id=await self.template(), name=f"s{next(self._numbers)}", cron_expression="@yearly"
        )
        return made.schedule_id

    async def webhook(self) -> str:
        return (await self.scheduler.webhooks.create(HOOK))[0].webhook_id

    async def delivery(self) -> str:
        made = await self.scheduler.webhooks.test(await self.webhook())
        for _ in range(1_000):
            if (await self.scheduler.webhooks.delivery(made.delivery_id)).finished_at is not None:
                break
            await asyncio.sleep(0.01)
        return made.delivery_id

    async def key(self) -> str:
        return (await self.scheduler.keys.create("to be deleted", ["read"]))[0].key_id

    async def held(self) -> str:
        """Uses up the quota of a resource. Returns its name."""
        self.scheduler.job_type("ask", resources=["llm"])(_used_up)
        await self.scheduler.run_direct("ask", office_id="busy")
        return "llm"

    async def node(self) -> str:
        return self.scheduler.node


async def _used_up(run: Any) -> None:
    raise QuotaExceeded(retry_after=1000)


async def _broken(run: Any, **anything: Any) -> None:
    raise ValueError("it broke")


async def _followed(updates: Any) -> None:
    async for _ in updates:
        pass


def _filled(body: Any, ids: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {key: _filled(value, ids) for key, value in body.items()}
    if isinstance(body, list):
        return [_filled(value, ids) for value in body]
    return body.format(**ids) if isinstance(body, str) else body
