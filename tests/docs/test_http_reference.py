"""docs/http.md: the script makes it from the declarations, and every example of it works on a real server."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from nextslot import RunContext, errors
from nextslot.domain import Scope
from nextslot.server import problems
from scripts import make_http_reference as script
from tests.extensions.gateway.fake_upstream import fake_upstream
from tests.server.support import served
from tests.server.test_18_audit import World, prepared

PAGE = script.PAGE.read_text()
# The model of the upstream, which is another one than that of the page.
MODELS = {"smollm2:135m": "plain"}

# Operations whose example cannot succeed here: the status of the answer, and why.
IMPOSSIBLE = {
    "POST /research/run": (502, "no language model does the research"),
    "GET /api/stories/{story_id}": (404, "no language model has written a story"),
    "GET /api/research-cards/{card_id}": (404, "no language model has made a card"),
}

# Who makes what a placeholder stands for, in general and for operations that need it in another state.
MAKERS = {
    "BATCH_ID": "batch", "DELIVERY_ID": "delivery", "DIRECT_ID": "direct", "FINGERPRINT": "failure",
    "GROUP_ID": "group", "JOB_ID": "queued", "KEY_ID": "key", "NODE_ID": "node", "RESOURCE": "held", "RUN_ID": "run",
    "SCHEDULE_ID": "schedule", "TEMPLATE_ID": "template", "WEBHOOK_ID": "webhook",
}  # fmt: skip
OTHERS = {
    "POST /api/jobs/{job_id}/rerun": {"JOB_ID": "failed"},
    "POST /api/jobs/{job_id}/lost": {"JOB_ID": "placed"},
    "PUT /api/job-runs/{run_id}/checkpoint": {"RUN_ID": "running"},
    "POST /api/job-runs/{run_id}/park": {"RUN_ID": "running"},
    "GET /api/job-runs/{run_id}/artifacts/{name}": {"RUN_ID": "run_of_thumbnail"},
    "GET /api/direct/{direct_id}/artifacts/{name}": {"DIRECT_ID": "direct_thumbnail"},
    "POST /api/offices/{office_id}/jobs/{job_id}/retry": {"JOB_ID": "failed"},
    "GET /jobs/{job_id}": {"JOB_ID": "old"},
    "POST /jobs/{job_id}/cancel": {"JOB_ID": "old"},
    "POST /jobs/{job_id}/monitor": {"JOB_ID": "old"},
    "POST /jobs/{job_id}/dedup_check": {"JOB_ID": "old"},
}
# Names that are no ids; otherwise the office `quiet`, in which nothing starts.
NAMED = {
    "DELETE /api/nodes/{node_id}": {"NODE_ID": "gone"},
    "POST /api/offices/{office_id}/jobs/{job_id}/retry": {"OFFICE_ID": "busy"},
    "DELETE /api/offices/{office_id}/roles/{role}": {"OFFICE_ID": "busy"},
    "POST /api/queue/pause": {"OFFICE_ID": "spare"},
    "POST /api/queue/resume": {"OFFICE_ID": "spare"},
    "GET /api/stories/{story_id}": {"STORY_ID": "none"},
    "GET /api/research-cards/{card_id}": {"CARD_ID": "none"},
}


class Shown(NamedTuple):
    """An operation on the page."""

    name: str
    scope: str | None
    example: str
    statuses: set[int]


def shown(page: str) -> list[Shown]:
    found = []
    for part in re.split(r"^(?=##+ )", page.partition("\n## Values\n")[0], flags=re.MULTILINE):
        if head := re.match(r"### ([A-Z]+) `(.*)`\n", part):
            [example] = re.findall(r"^```sh\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
            scope = re.search(r"^Needs the scope `(\w+)`", part, re.MULTILINE)
            listed = part.rpartition("```")[2]
            statuses = {int(one) for one in re.findall(r"(?:^- \*\*|: |· )(\d{3})\b", listed, re.MULTILINE)}
            found.append(Shown(f"{head[1]} {head[2]}", scope and scope[1], example, statuses))
    return found


SHOWN = shown(PAGE)


def test_the_page_is_the_one_that_the_script_makes_now() -> None:
    assert script.page() == PAGE, "run: .venv/bin/python scripts/make_http_reference.py"


def test_the_page_shows_every_operation_of_the_document_with_its_scope_and_its_statuses() -> None:
    document = script.document()
    declared = {
        f"{method} {path}": (one.get("x-scope"), {int(status) for status in one["responses"]})
        for method, path, one in script.operations(document)
    }

    assert {one.name: (one.scope, one.statuses) for one in SHOWN} == declared
    assert len(SHOWN) == len(declared) > 100


def test_every_link_of_the_page_to_itself_leads_to_a_heading() -> None:
    headings = [script._slug(one) for one in re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)]

    assert len(headings) == len(set(headings))
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= set(headings)


def test_every_code_of_a_refusal_has_its_status_and_a_remedy() -> None:
    listed = dict(re.findall(r"^\| \d{3} \| `(\w+)` \| .* \| (.+) \|$", PAGE, re.MULTILINE))
    # These end a wait or a call in Python, and are no answers.
    python = {"not_ended", "run_failed", "store", "refused"}

    assert listed.keys() == problems.TITLES.keys() == script.REMEDIES.keys()
    assert {one.code for one in classes(errors.NextslotError)} - python <= listed.keys()


def test_no_sentence_and_no_example_of_the_script_is_left_over() -> None:
    document = script.document()
    operations = list(script.operations(document))
    paths = {path for _, path, _ in operations}
    undescribed = {
        (method, path)
        for method, path, one in operations
        if one.get("description", "").startswith("Needs the scope") or not one.get("description")
    }
    names = script.Reference(document).names
    tails = {".".join(reversed(one.split(" of "))) for one in names.values()}

    assert script.SENTENCES.keys() == undescribed
    assert {one if isinstance(one, str) else one[1] for one in (*script.PLACES, *script.QUERIES)} <= paths
    assert script.BODIES.keys() <= tails | paths


def classes(root: type[errors.NextslotError]) -> list[type[errors.NextslotError]]:
    return [root, *(found for one in root.__subclasses__() for found in classes(one))]


@pytest.mark.real_time
async def test_every_example_of_the_page_is_answered_as_the_page_says(tmp_path: Path) -> None:
    """It is sent with a key of the scope that the page names, and succeeds unless it is in IMPOSSIBLE."""
    async with fake_upstream() as upstream:
        server = await prepared(tmp_path, f'[gateway.upstreams.fake]\nbase_url = "{upstream.base_url}"\n')
        async with served(server):
            world = await Furnished.made(server)
            wrong = [f"{one.name}: {said}" for one in SHOWN if (said := await world.complaint(one)) is not None]

    assert not wrong, "\n".join(wrong)


def test_an_example_is_read_as_a_shell_reads_it() -> None:
    text = (
        'curl -X POST "$NEXTSLOT_URL/a/JOB_ID" -H "X-API-Key: $NEXTSLOT_API_KEY" \\\n  -d \'{"title": "it\'\\\'\'s"}\''
    )

    found = sent(text, {"$NEXTSLOT_URL": "http://there", "$NEXTSLOT_API_KEY": "k", "JOB_ID": "7"})

    assert (found.method, str(found.url), found.headers["x-api-key"]) == ("POST", "http://there/a/7", "k")
    assert json.loads(found.content) == {"title": "it's"}


def sent(example: str, values: dict[str, str]) -> httpx2.Request:
    """Returns the request that curl would send."""
    for name, value in sorted(values.items(), key=lambda one: -len(one[0])):
        example = example.replace(name, value)
    command, *words = shlex.split(example.replace("\\\n", ""))
    assert command == "curl"
    method, url, body, headers = "GET", "", None, {"Accept": "*/*"}
    waiting = iter(words)
    for word in waiting:
        match word:
            case "-X":
                method = next(waiting)
            case "-d":
                body = next(waiting)
            case "-H":
                name, _, value = next(waiting).partition(": ")
                headers[name] = value
            case _:
                url = word
    return httpx2.Request(method, url, content=body, headers=headers)


class Furnished(World):
    """A world that also has what the examples name: the job type `thumbnail`, an office to pause, a batch."""

    @classmethod
    async def made(cls, server: Any) -> "Furnished":
        server.scheduler.job_types.add("thumbnail", _thumbnail)
        await server.scheduler.offices.create("spare")
        made = await super().made(server)
        assert isinstance(made, cls)
        return made

    async def complaint(self, one: Any) -> str | None:
        """Returns what is wrong with the answer to the example of an operation; None if nothing is."""
        values = {
            "$NEXTSLOT_URL": str(self.server.client.base_url).rstrip("/"),
            "$NEXTSLOT_API_KEY": self.keys[Scope(one.scope)][1] if one.scope else "",
            "OFFICE_ID": "quiet",
            **MODELS,
            **NAMED.get(one.name, {}),
        }
        makers = {**MAKERS, **OTHERS.get(one.name, {})}
        for name in set(re.findall(r"\b[A-Z]+_ID\b|\bFINGERPRINT\b|\bRESOURCE\b", one.example)) - values.keys():
            values[name] = await getattr(self, makers[name])()
        request = sent(one.example, values)
        answer = await self.server.client.send(request)
        if one.name == "POST /api/nodes/{node_id}/drain":
            await self.scheduler.nodes.drain(self.scheduler.node, undo=True)
        if answer.status_code not in one.statuses:
            return f"the page does not list {answer.status_code}: {answer.text[:300]}"
        if one.name in IMPOSSIBLE:
            status, why = IMPOSSIBLE[one.name]
            return None if answer.status_code == status else f"{answer.status_code}, although {why}"
        return None if answer.status_code < 400 else f"{answer.status_code} {answer.text[:300]}"

    async def batch(self) -> str:
        answer = await self.server.client.post(
            "/jobs/batch/trigger", json={"jobs": [{"type": "story"}]}, headers=self.header(Scope.SUBMIT)
        )
        found: str = answer.json()["batch_id"]
        return found

    async def run_of_thumbnail(self) -> str:
        job = await self.scheduler.submit("thumbnail", {"path": "cover.png"}, office_id="busy")
        await self.scheduler.wait(job.job_id)
        run = await self.scheduler.run_of(job.job_id)
        assert run is not None
        return run.run_id

    async def direct_thumbnail(self) -> str:
        return (await self.scheduler.run_direct("thumbnail", {"path": "cover.png"}, office_id="busy")).run_id


async def _thumbnail(run: RunContext, path: str = "cover.png") -> None:
    (run.artifacts / path).write_bytes(b"a small picture")
