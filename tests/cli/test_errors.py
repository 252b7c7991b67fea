"""Every error that a person meets: one sentence on stderr that says what to do, and the exit code."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Said, Terminal
from tests.serving import Served, serving


def refused(said: Said, code: int, *words: str) -> None:
    assert (said.code, said.out) == (code, "")
    assert [word for word in words if word not in said.err] == [], said.err


def test_no_server(nextslot: Terminal) -> None:
    said = nextslot("ls", "--url", "http://127.0.0.1:9")

    refused(said, 1, "no server answers at http://127.0.0.1:9", "start one with `nextslot serve`", "--url")
    assert said.err.startswith("nextslot: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (["submit", "skip", "--idempotency-key", "mine"], "submit it again with --idempotency-key mine"),
        (["queue", "pause"], "check with `nextslot ls`"),
    ],
    ids=["with a key", "without"],
)
def test_a_server_that_ends_before_it_answers_leaves_the_outcome_unknown(
    nextslot: Terminal, command: list[str], remedy: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=hang_up_after_the_request, args=(listener,))
        thread.start()
        said = nextslot(*command, "--url", f"http://127.0.0.1:{port}")
        thread.join(30)

    refused(said, 1, f"http://127.0.0.1:{port} may have carried the request out, but its answer was lost", remedy)


def hang_up_after_the_request(listener: socket.socket) -> None:
    """Plays a server that is killed while it has a request."""
    line, _ = listener.accept()
    listener.close()
    line.recv(65536)
    line.close()


def test_a_submission_that_is_repeated_with_its_key_is_the_same_job(nextslot: Terminal) -> None:
    first, again = (nextslot("submit", "skip", "--idempotency-key", "once").word for _ in range(2))

    assert first == again


def test_an_address_that_is_none(nextslot: Terminal) -> None:
    refused(nextslot("ls", "--url", "localhost"), 1, "'localhost' is not the address of a server")


def test_an_unknown_id(nextslot: Terminal) -> None:
    for part in ("ffffffff", "not-an-id", "01a1df19-6817-7713-b5b2-1c6b87585fa2"):
        refused(nextslot("show", part), 1, f"there is no job '{part}'; `nextslot ls` lists jobs")


def test_an_ambiguous_part_of_an_id_names_those_that_it_may_mean(nextslot: Terminal) -> None:
    jobs = [nextslot("submit", "skip").word for _ in range(2)]

    said = nextslot("show", jobs[0][:4])

    refused(said, 1, f"'{jobs[0][:4]}' matches several: ", jobs[1], "give more of the id")


def test_a_bad_filter_names_those_there_are(nextslot: Terminal) -> None:
    refused(nextslot("ls", "--filter", "colour=red"), 2, "'colour=red' is not a filter", "job_type", "created_after")
    refused(nextslot("ls", "--status", "asleep"), 1, "status is 'ASLEEP'; it must be one of WAITING, QUEUED")


def test_an_unknown_type_names_those_there_are(nextslot: Terminal) -> None:
    refused(nextslot("submit", "nope", "a=1"), 1, "there is no job type 'nope'", "known: echo")
    refused(nextslot("run", "nope"), 1, "there is no job type 'nope'")


def test_a_wrong_parameter_is_named(nextslot: Terminal) -> None:
    refused(nextslot("submit", "echo", "number=many"), 1, "params.number", "integer")
    refused(nextslot("submit", "gated"), 1, "gate")


@pytest.mark.parametrize("word", ["number", "=5", "a:=[", "a=@/no/such/file", "@/no/such/file"])
def test_what_is_no_parameter_is_a_wrong_use(nextslot: Terminal, word: str) -> None:
    refused(nextslot("submit", "echo", word), 2, "Try 'nextslot submit -h'", word.partition("=")[0])


def test_a_wrong_use_says_how(nextslot: Terminal) -> None:
    job = nextslot("submit", "skip").word

    refused(nextslot("move", job), 2, "the new place is missing or ambiguous", "--front")
    refused(nextslot("cancel"), 2, "no jobs were selected", "--filter")
    refused(nextslot("change", job), 2, "nothing to change was given")
    refused(nextslot("nonsense"), 2, "No such command 'nonsense'")
    refused(nextslot("ls", "--nonsense"), 2, "--nonsense")


def test_what_has_ended_cannot_be_cancelled_and_the_sentence_says_what_it_is(nextslot: Terminal) -> None:
    job = nextslot("submit", "skip", "--wait", "--json").json["job_id"]

    refused(nextslot("cancel", job), 1, job, "SKIPPED")


def test_a_job_that_has_no_run_yet_has_no_log(nextslot: Terminal) -> None:
    job = nextslot("submit", "skip", "--at", "2999-01-01T00:00:00Z").word

    refused(nextslot("log", job), 1, "WAITING", f"nextslot why {job}")


def test_a_template_that_is_not_there(nextslot: Terminal) -> None:
    refused(nextslot("template", "show", "nope"), 1, "there is no template 'nope'")
    refused(nextslot("schedule", "add", "x", "61 * * * *", "nope"), 1, "there is no template 'nope'")


def test_a_bad_cron_expression_is_told_with_the_reason(nextslot: Terminal) -> None:
    nextslot("template", "add", "for cron", "echo")

    refused(nextslot("schedule", "add", "x", "61 * * * *", "for cron"), 1, "cron_expression")


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts a server for one test only: from the first key on it requires a key from every caller."""
    with serving(tmp_path) as server:
        monkeypatch.setenv("NEXTSLOT_URL", server.url)
        yield


def test_keys_missing_wrong_and_too_weak(nextslot: Terminal, own_server: None) -> None:
    admin = nextslot("key", "add", "boss", "--scope", "admin").word
    weak = nextslot("key", "add", "guest", "--scope", "read", "--key", admin).word

    refused(nextslot("ls"), 1, "has no key", "--key", "NEXTSLOT_API_KEY")
    refused(nextslot("ls", "--key", "nsk_wrong"), 1, "this key is not known", "NEXTSLOT_API_KEY")
    refused(nextslot("submit", "echo", "--key", weak), 1, "scope 'submit'", "'read'")
    assert re.fullmatch(r"nsk_\S+", admin)
    assert nextslot("ls", "--key", weak).code == 0
    assert [row[1:3] for row in nextslot("key", "ls", "--key", admin).rows] == [["guest", "read"], ["boss", "admin"]]
    assert nextslot("key", "rm", "guest", "--key", admin).code == 0
    refused(nextslot("key", "rm", "boss", "--key", admin), 1, "admin")


def test_where_the_server_is_may_be_said_before_the_command(
    served: Served, nextslot: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSLOT_URL", "http://127.0.0.1:9")

    before = nextslot("--url", served.url, "--key", "nobody", "types")
    after = nextslot("--url", "http://127.0.0.1:9", "types", "--url", served.url)
    nowhere = nextslot("types")
    local = nextslot("--url", served.url, "version")

    assert (before.code, after.code, nowhere.code, local.code) == (0, 0, 1, 2)
    assert "does not use a server" in local.err
