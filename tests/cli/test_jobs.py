"""Jobs at the command line: submitted, watched, listed, cancelled, retried, moved."""

import contextlib
import io
import json
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nextslot.cli.session import Session
from nextslot.client import Client
from tests.cli.terminal import Terminal
from tests.serving import Served, open_gate


def held(nextslot: Terminal, *more: str) -> str:
    """Submits a job that does not start by itself."""
    return nextslot("submit", "echo", "--at", "2999-01-01T00:00:00Z", *more).word


def test_submit_prints_the_id_and_show_finds_it_by_either_end(nextslot: Terminal) -> None:
    job_id = held(nextslot, "text=hello", "--title", "a greeting", "--priority", "7")

    for part in (job_id, job_id[-8:], job_id[:30], job_id[-8:].upper()):
        said = nextslot("show", part)

        assert job_id in said.out
        assert "a greeting" in said.out


def test_values_are_json_where_the_schema_of_the_type_wants_it(nextslot: Terminal, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("from a file")
    (tmp_path / "more.json").write_text('{"number": 1, "extra": [1]}')
    words = [
        f"@{tmp_path}/more.json",
        "number=7",
        'items=["a"]',
        "free=true",
        "forced:=1",
        f"late=@{tmp_path}/text.txt",
    ]

    job_id = held(nextslot, "text=5", *words)

    params = nextslot("show", job_id, "--json").json["params"]
    assert params == {
        "text": "5", "number": 7, "items": ["a"], "free": True, "forced": 1, "late": "from a file", "extra": [1]
    }  # fmt: skip


def test_waiting_prints_the_result_and_the_exit_code_is_that_of_the_chain(nextslot: Terminal) -> None:
    done, failed = nextslot("submit", "flaky", "--wait"), nextslot("submit", "fail", "message=bad luck", "--wait")
    skipped = nextslot("submit", "skip", "--wait")

    assert (done.code, json.loads(done.out)) == (0, {"attempt": 2})
    assert (failed.code, failed.out) == (1, "")
    assert "FAILED" in failed.err
    assert "bad luck" in failed.err
    assert (skipped.code, "nothing to do" in skipped.err) == (0, True)


def test_waiting_for_json_prints_the_last_job_of_the_chain(nextslot: Terminal) -> None:
    job = nextslot("submit", "flaky", "--wait", "--json").json

    assert (job["status"], job["attempt"], len(job["chain"])) == ("COMPLETED", 2, 2)


def test_following_shows_the_log_as_it_is_written(nextslot: Terminal, served: Served) -> None:
    threading.Timer(0.3, open_gate, (served, "follow")).start()

    said = nextslot("submit", "gated", "gate=follow", "--follow")

    assert said.code == 0
    assert said.out.index("before follow") < said.out.index("after follow") < said.out.index('"gate"')


def test_log_prints_the_log_of_a_job_and_its_tail(nextslot: Terminal) -> None:
    job = nextslot("submit", "echo", "text=logged", "--wait", "--json").json

    for which in (job["job_id"][-8:], job["run"]["run_id"]):
        assert "echo logged" in nextslot("log", which).out
    assert nextslot("log", job["job_id"], "-f").out == nextslot("log", job["job_id"]).out
    assert nextslot("log", job["job_id"], "--tail", "0").out == ""
    assert "echo logged" in nextslot("log", job["job_id"], "--json").json["log"]


def test_ls_is_a_table_that_filters(nextslot: Terminal) -> None:
    job_id = held(nextslot, "--title", "find me [bold]")

    by_text = nextslot("ls", "-q", "find me")
    by_filter = nextslot("ls", "--filter", "type=echo", "--filter", "status=waiting", "--limit", "500")

    assert [row[0] for row in by_text.rows] == [job_id[-8:]]
    assert "find me [bold]" in by_text.out
    assert job_id[-8:] in by_filter.out
    assert nextslot("ls", "--status", "running").out == ""


def test_ls_sorts_and_selects_by_the_end(nextslot: Terminal, served: Served) -> None:
    waits = held(nextslot, "--title", "sorted", "--priority", "7")
    first, last = (nextslot("submit", "echo", "--title", "sorted", "--wait", "--json").json for _ in range(2))

    by_end = nextslot("ls", "-q", "sorted", "--sort", "finished_at").rows
    after_first = nextslot("ls", "-q", "sorted", "--filter", f"finished_after={first['finished_at']}").rows
    by_priority = nextslot("ls", "-q", "sorted", "--sort=-priority").rows

    assert [row[0] for row in by_end] == [first["job_id"][-8:], last["job_id"][-8:]]
    assert [row[0] for row in after_first] == [last["job_id"][-8:]]
    assert by_priority[0][0] == waits[-8:]
    assert nextslot("ls", "--sort", "size").code == 1


def test_ls_for_programs_is_the_page_of_the_api(nextslot: Terminal, served: Served) -> None:
    held(nextslot)
    held(nextslot)

    page = nextslot("ls", "--limit", "1", "--json").json
    following = nextslot("ls", "--limit", "1", "--cursor", page["next_cursor"], "--json").json

    assert set(page) == {"items", "next_cursor"}
    assert page["items"][0]["job_id"] > following["items"][0]["job_id"]


def test_a_dry_run_says_when_it_would_start_and_submits_nothing(nextslot: Terminal) -> None:
    before = nextslot("ls", "--json").json["items"]

    said = nextslot("submit", "echo", "--dry-run", "--at", "2100-01-01T00:00:00Z")

    assert "It may not start before 2100-01-01" in said.out
    assert nextslot("submit", "echo", "--dry-run", "--json").json["is_new"]
    assert nextslot("ls", "--json").json["items"] == before


def test_why_answers_in_sentences(nextslot: Terminal) -> None:
    job_id = held(nextslot)

    said = nextslot("why", job_id)

    assert "2999-01-01" in said.out
    assert nextslot("why", job_id, "--json").json["status"] == "WAITING"


def test_cancel_takes_several_ids(nextslot: Terminal) -> None:
    one, other = held(nextslot), held(nextslot)

    said = nextslot("cancel", one[-8:], other, "--reason", "not needed")

    assert said.out.count("cancelled") == 2
    assert nextslot("show", one, "--json").json["cancel_reason"] == "not needed"


def test_cancel_by_filter_asks_with_a_count(nextslot: Terminal) -> None:
    jobs = [held(nextslot, "--role", "crowd") for _ in range(3)]

    refused = nextslot("cancel", "--filter", "role=crowd", typed="n\n")
    still = nextslot("show", jobs[0], "--json").json["status"]
    done = nextslot("cancel", "--filter", "role=crowd", typed="y\n")

    assert "cancel 3 jobs?" in refused.err
    assert (refused.code, still) == (1, "WAITING")
    assert done.out.startswith("3 cancelled")


def test_yes_does_not_ask(nextslot: Terminal) -> None:
    held(nextslot, "--role", "quiet")

    assert nextslot("cancel", "--filter", "role=quiet", "--yes", "--json").json["cancelled"] == 1


def test_retry_takes_a_run_a_job_or_a_filter(nextslot: Terminal) -> None:
    failed = nextslot("submit", "fail", "--wait", "--json")
    job = json.loads(failed.out)

    by_job = nextslot("retry", job["job_id"][-8:]).word
    nextslot("show", by_job)
    waited = nextslot("submit", "skip", "--wait")
    many = nextslot("retry", "--filter", "type=fail", "--yes", "--json").json

    assert waited.code == 0
    assert by_job != job["job_id"]
    assert many["retried"] >= 1


def test_rerun_makes_a_new_job_with_other_parameters(nextslot: Terminal) -> None:
    ended = nextslot("submit", "echo", "text=one", "number=2", "--wait", "--json").json

    again = nextslot("rerun", ended["job_id"], "number=3", "--json").json

    assert again["params"] == {"text": "one", "number": 3}
    assert again["retry_of"] is None


def test_move_and_change_and_the_queue(nextslot: Terminal) -> None:
    nextslot("office", "add", "movers")
    nextslot("queue", "pause", "--office", "movers")
    first, second = (nextslot("submit", "echo", "--office", "movers").word for _ in range(2))

    nextslot("move", second, "--before", first[-8:])
    nextslot("change", first, "--title", "renamed", "text=other")

    rows = nextslot("queue", "ls", "--office", "movers").rows
    assert [row[1] for row in rows] == [second[-8:], first[-8:]]
    assert rows[1][-1] == "renamed"
    assert nextslot("show", first, "--json").json["params"] == {"text": "other"}
    ordered = nextslot("queue", "order", first, second, "--json").json
    assert [job["job_id"] for job in ordered["queue"]] == [first, second]


def test_a_queued_job_becomes_urgent_and_gets_a_title_as_long_as_a_new_one_may_have(nextslot: Terminal) -> None:
    job = nextslot("submit", "echo", "--at", "2999-01-01T00:00:00Z").word

    urgent = nextslot("change", job, "--urgent", "--title", "t" * 2_000, "--json").json
    usual = nextslot("change", job, "--not-urgent", "--json").json

    assert (urgent["priority"], urgent["title"]) == (1_000_000, "t" * 2_000)
    assert usual["priority"] == 0
    assert "give one of the two" in nextslot("change", job, "--urgent", "--priority", "5").err


def test_run_waits_for_the_slot_and_prints_the_result(nextslot: Terminal) -> None:
    done, failed = nextslot("run", "echo", "text=direct"), nextslot("run", "fail")

    assert json.loads(done.out)["text"] == "direct"
    assert "echo direct" in done.err
    assert (failed.code, failed.out) == (1, "")
    assert "failed as asked" in failed.err
    assert nextslot("run", "skip", "--json").json["status"] == "SKIPPED"


def test_run_gives_up_when_the_slot_is_busy(nextslot: Terminal, served: Served) -> None:
    job_id = nextslot("submit", "gated", "gate=busy").word

    said = nextslot("run", "echo", "--wait-timeout", "0.05")

    open_gate(served, "busy")
    nextslot("log", job_id, "-f")
    assert said.code == 1
    first, why, end = said.err.splitlines()
    assert first == "waiting: echo takes the next slot; 0 callers are ahead"
    assert why.startswith("waiting: The limit of the office 'default' is full (1 of 1): held by ")
    assert end.startswith("nextslot: ")


@pytest.mark.parametrize("colour", ["1", ""])
def test_no_colours_where_no_person_looks(nextslot: Terminal, monkeypatch: pytest.MonkeyPatch, colour: str) -> None:
    monkeypatch.setenv("NO_COLOR", colour)
    held(nextslot)

    assert "\x1b" not in nextslot("ls").out


def test_the_note_of_a_submission_is_printed_once_to_stderr(nextslot: Terminal, served: Served) -> None:
    async def note(params: Mapping[str, Any]) -> str:
        return "Nothing answers yet."

    async def work(run: Any) -> None: ...

    served.scheduler.job_types.add("noted", work, note=note)
    session = Session(served.url, None, is_json=False)
    later = "2999-01-01T00:00:00Z"

    said = nextslot("submit", "noted", "--at", later)
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        for _ in range(2):
            session.client.submit("noted", scheduled_for=later)
    session.close()

    assert said.err == "nextslot: Nothing answers yet.\n"
    assert len(said.word) == 36
    assert err.getvalue() == said.err
    assert nextslot("submit", "echo", "--at", later).err == ""


def test_waiting_says_on_stderr_what_for_and_wait_goes_on_from_there(nextslot: Terminal, served: Served) -> None:
    nextslot("queue", "pause")
    job = nextslot("submit", "echo", "text=later").out.strip()
    with Client(served.url) as client:
        resume = threading.Timer(3, client.resume)
        resume.start()
        said = nextslot("wait", job)
        resume.join()

    assert said.code == 0
    assert "waiting: " in said.err
    assert "paused" in said.err


def test_waiting_for_a_group_says_on_stderr_what_for(nextslot: Terminal, served: Served, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(json.dumps([{"job_type": "echo"}, {"job_type": "echo"}]))
    nextslot("template", "add", "two", "--group", str(tmp_path / "two.json"))
    nextslot("queue", "pause")
    with Client(served.url) as client:
        resume = threading.Timer(3, client.resume)
        resume.start()
        said = nextslot("template", "submit", "two", "--wait")
        resume.join()

    assert said.code == 0
    assert said.err.count("waiting: The whole scheduler is paused.") == 1


def test_a_time_may_be_given_from_now_on(nextslot: Terminal) -> None:
    job = nextslot("submit", "echo", "--at", "+2h", "--json").json

    ahead = datetime.fromisoformat(job["scheduled_for"]) - datetime.now(UTC)
    assert timedelta(hours=1, minutes=55) < ahead <= timedelta(hours=2)
    wrong = nextslot("submit", "echo", "--at", "+soon")
    assert (wrong.code, "'soon' is not a duration; give for example 90s, 30m, 12h or 7d" in wrong.err) == (1, True)
    nextslot("cancel", job["job_id"])


def test_a_job_gets_its_affinity_and_its_limit_keys(nextslot: Terminal) -> None:
    options = ("--affinity", "llama", "--limit-key", "customer:7", "--limit-key", "tier:gold")
    job_id = nextslot("submit", "echo", *options).word

    job = nextslot("show", job_id, "--json").json
    assert (job["affinity"], job["limit_keys"]) == ("llama", ["customer:7", "tier:gold"])


def test_the_version_and_short_help_are_options(nextslot: Terminal) -> None:
    assert nextslot("--version").out.strip() == nextslot("version").out.strip()
    assert "Usage: nextslot" in nextslot("-h").out
    assert "Usage: nextslot submit" in nextslot("submit", "-h").out


def test_what_waits_for_an_answer_is_listed_with_its_question(nextslot: Terminal) -> None:
    asking = ("--await-signal", "listed", "--question", "May it be listed?", "--title", "Deploy")
    asked = nextslot("submit", "echo", *asking).word
    plain = held(nextslot)

    every = nextslot("ls", "--awaiting")
    same = [nextslot("ls", *said, "--json").json["items"] for said in (
        ("--awaiting",), ("-q", "is:awaiting"), ("--filter", "awaiting_signal=true"))]  # fmt: skip
    others = nextslot("ls", "--filter", "awaiting_signal=false", "--json").json["items"]
    nextslot("reject", asked)
    after = nextslot("ls", "--awaiting", "--json").json["items"]

    assert "Deploy · waits for 'listed': May it be listed?" in every.out
    ids = [[one["job_id"] for one in items] for items in same]
    assert ids[0] == ids[1] == ids[2]
    assert asked in ids[0]
    assert plain not in ids[0]
    assert plain in [one["job_id"] for one in others]
    assert asked not in [one["job_id"] for one in others]
    assert asked not in [one["job_id"] for one in after]


def test_a_submission_names_who_may_answer(nextslot: Terminal) -> None:
    asking = ("--await-signal", "release", "--answered-by", "boss", "--answered-by", "link")
    asked = nextslot("submit", "echo", *asking).word
    unnamed = nextslot("submit", "echo", "--answered-by", "boss")

    shown = nextslot("show", asked, "--json").json
    nextslot("cancel", asked)

    assert shown["await_signal"]["answered_by"] == ["boss", "link"]
    assert unnamed.code == 2
    assert "--answered-by need --await-signal NAME" in re.sub(r"[\s│]+", " ", unnamed.err)


def test_a_person_approves_and_rejects_what_waits_for_an_answer(nextslot: Terminal) -> None:
    asking = ("--await-signal", "release", "--question", "May it go live?", "--deadline", "3600")
    approved, rejected, early = (nextslot("submit", "echo", *asking).word for _ in range(3))
    why = nextslot("why", approved)
    said = nextslot("approve", approved, "--payload", '{"size": 3}')
    again = nextslot("approve", approved, "--payload", '{"size": 3}')
    other = nextslot("reject", approved, "release")
    no = nextslot("reject", rejected[-8:])
    sent = nextslot("signal", early, "release", "--id", "once")
    too_late = nextslot("approve", rejected)
    nothing = nextslot("approve", held(nextslot))

    assert "waits for the signal 'release' (May it go live?)" in why.out
    assert said.out.startswith("release: approve by ")
    assert again.out == said.out
    assert (other.code, other.out) == (1, "")
    assert "was answered with 'approve' by" in other.err
    assert no.out.startswith("release: reject by ")
    assert nextslot("show", rejected, "--json").json["status"] == "CANCELLED"
    assert sent.code == 0
    assert "was answered with 'reject' by" in too_late.err
    assert "does not wait for an answer" in nothing.err
