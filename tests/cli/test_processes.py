"""The command line as processes: a server that is started and stopped, a caller who hangs up, a quick start."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from nextslot import Client
from tests import databases
from tests.cli.terminal import database_of
from tests.serving import Served

PROGRAM = [sys.executable, "-m", "nextslot.cli.main"]


@contextlib.contextmanager
def started(*words: str) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    environment = {**os.environ, **database_of(words)}
    with subprocess.Popen([*PROGRAM, *words], text=True, stdout=pipe, stderr=pipe, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_serve_says_where_it_is_and_stops_with_0_when_all_is_stored(tmp_path: Path, number: signal.Signals) -> None:
    with started("serve", "--data", str(tmp_path / "data"), "--port", "0", "--json") as process:
        told = json.loads(line_of(process))
        with Client(told["url"]) as client:
            client.ready()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)

    assert (process.returncode, told["data"]) == (0, str(tmp_path / "data")), err
    assert (tmp_path / "data" / "nextslot.db").exists() == (databases.kind() == "sqlite")


def test_a_server_is_the_node_that_its_command_line_or_its_file_names(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text('[node]\nname = "in-file"\nrunning = 3\n[node.resources]\ngpu = 2\n')
    with started("serve", "--data", str(tmp_path), "--port", "0", "--json", "--node", "by-hand") as process:
        with Client(json.loads(line_of(process))["url"]) as client:
            [node] = client.nodes.list()
            status = client.status()
        process.terminate()
        process.communicate(timeout=60)

    assert (node.node_id, node.max_running, dict(node.resources)) == ("by-hand", 3, {"gpu": 2})
    assert (status.node, status.live_nodes) == ("by-hand", 1)


def test_serve_tells_people_where_to_look(tmp_path: Path) -> None:
    with started("serve", "--data", str(tmp_path), "--port", "0") as process:
        lines = [line_of(process) for _ in range(4)]
        process.terminate()
        process.communicate(timeout=60)

    assert lines[0].startswith("nextslot listens on http://127.0.0.1:")
    assert "/console/" in lines[1]
    assert "/docs" in lines[2]
    assert str(tmp_path) in lines[3]


def test_the_configuration_is_read_again_on_request_and_on_sighup(tmp_path: Path) -> None:
    file = tmp_path / "nextslot.toml"
    command = '[job_types.{}]\ncommand = ["true"]\n'
    with started("serve", "--data", str(tmp_path), "--port", "0", "--json") as process:
        with Client(json.loads(line_of(process))["url"]) as client:
            file.write_text(command.format("asked"))
            reloaded = client.reload()
            file.write_text(command.format("signalled"))
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            while '"reload: ' not in process.stderr.readline():
                pass  # Not the line of the request before, which names its route.
            known = {one.job_type for one in client.job_types()}
        process.terminate()
        process.communicate(timeout=60)

    assert "asked" in json.dumps(dict(reloaded))
    assert "signalled" in known
    assert "asked" not in known


def refusal(*words: str) -> str:
    environment = {**os.environ, **database_of(words)}
    ran = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (ran.returncode, ran.stdout) == (1, "")
    return ran.stderr


def test_serve_on_another_address_needs_a_key_first(tmp_path: Path) -> None:
    told = refusal("serve", "--data", str(tmp_path), "--host", "0.0.0.0", "--port", "0")

    assert "there is no API key, which listening on 0.0.0.0 requires; create one: nextslot key add" in told


def test_serve_refuses_a_port_that_is_taken_and_a_bad_configuration(served: Served, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[server]\nprot = 8000\n")

    taken = refusal("serve", "--data", str(tmp_path), "--port", served.url.rpartition(":")[2])
    bad = refusal("serve", "--data", str(tmp_path), "--config", str(tmp_path / "bad.toml"))

    assert "--port 0 for a free one" in taken
    assert "bad.toml: server.prot" in bad


def test_ctrl_c_during_run_hangs_up_and_the_work_is_cancelled(served: Served) -> None:
    words = ["run", "gated", "gate=never", "--id", "interrupted", "--url", served.url]
    with started(*words) as process:
        assert process.stderr is not None
        while "before never" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    async def ended() -> str:
        # No event tells of the end: the reservation was released when the work started.
        while (found := await served.scheduler.direct("interrupted")).finished_at is None:  # noqa: ASYNC110 - stored
            await asyncio.sleep(0.02)
        return str(found.failure_kind)

    assert process.returncode == 130
    assert served.run(ended()) == "cancelled"


def test_ctrl_c_while_waiting_leaves_the_job_alone_and_says_so(served: Served) -> None:
    with (
        Client(served.url) as client,
        started("submit", "gated", "gate=patience", "--wait", "--url", served.url) as process,
    ):
        assert process.stderr is not None
        job_id = process.stderr.readline().split()[-1]
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
            found = client.job(job_id)
        finally:
            client.cancel(job_id, interrupt=True)
    assert (process.returncode, found.finished_at) == (130, None)
    assert f"the job continues: `nextslot log {job_id} -f` follows it" in err


def test_events_are_followed_line_by_line(served: Served) -> None:
    with (
        Client(served.url) as client,
        started("events", "-f", "--json", "--after", "0", "--url", served.url) as process,
    ):
        job = client.submit("skip")
        events = [json.loads(line_of(process))]
        while events[-1]["type"] != "job_skipped" or events[-1]["job_id"] != job.job_id:
            events.append(json.loads(line_of(process)))

    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


def test_a_reader_who_has_seen_enough_is_no_error_of_ours(served: Served) -> None:
    with Client(served.url) as client:
        client.submit("skip")
    command = f"{sys.executable} -m nextslot.cli.main ls --json --url {served.url} | head -n 1"

    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)

    assert ran.stdout == "{\n"
    assert "Traceback" not in ran.stderr


def test_help_imports_neither_the_engine_nor_an_http_client_nor_the_drawing() -> None:
    code = """
import sys
from nextslot.cli.main import main
try:
    main(["--help"])
except SystemExit:
    heavy = {"nextslot.scheduler", "nextslot.client", "httpx2", "fastapi", "pydantic", "rich", "apsw"}
    print(sorted(heavy & set(sys.modules)))
"""

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_server_imports_neither_the_metrics_nor_the_offline_commands_before_it_needs_them() -> None:
    code = """
import sys, nextslot.cli.serving
late = {"prometheus_client", "nextslot.offline_commands", "rich"}
print(sorted(late & set(sys.modules)))
"""

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert ran.stdout.splitlines()[-1] == "[]"


def test_the_package_is_light_and_so_is_the_client_until_it_asks() -> None:
    code = """
import sys, nextslot
first = set(sys.modules)
nextslot.Client("http://there")
print(sorted({"nextslot.scheduler", "nextslot.domain", "asyncio"} & first))
print(sorted({"nextslot.scheduler", "nextslot.engine", "asyncio", "httpx2"} & set(sys.modules)))
"""

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert ran.stdout == "[]\n[]\n"


def test_a_shell_completes_commands_and_the_script_says_how() -> None:
    asked = {**os.environ, "_NEXTSLOT_COMPLETE": "complete_bash", "COMP_WORDS": "nextslot sub", "COMP_CWORD": "1"}

    completed = subprocess.run(PROGRAM, env=asked, capture_output=True, text=True, timeout=60, check=True)
    script = subprocess.run([*PROGRAM, "completion", "bash"], capture_output=True, text=True, timeout=60, check=True)

    assert completed.stdout.split() == ["submit"]
    assert "complete -o default -F _nextslot_completion nextslot" in script.stdout


def test_while_it_starts_HTTP_and_commands_say_what_ready_says(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # A PostgreSQL that takes connections and says nothing.
        database = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/jobs"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        paths = ("/ready", "/api/jobs", "/api/status", "/api/queue")
        with (
            started("serve", "--data", str(tmp_path), "--database", database, "--port", str(port)),
            httpx2.Client(base_url=url, timeout=20, transport=httpx2.HTTPTransport(retries=8)) as http,
        ):
            # What it says changes once, when the first try to connect has timed out: then ask again.
            while True:
                answers = {path: http.get(path) for path in paths}
                said = {path: answer.json()["detail"] for path, answer in answers.items()}
                ls = subprocess.run([*PROGRAM, "ls", "--url", url], text=True, capture_output=True, check=False)
                if http.get("/ready").json()["detail"] == said["/ready"]:
                    break

    assert {answer.status_code for answer in answers.values()} == {503}
    assert set(said.values()) == {said["/ready"]}
    assert "async with" not in said["/ready"]
    assert (ls.returncode, said["/ready"] in ls.stderr) == (1, True), ls.stderr
