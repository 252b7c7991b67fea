"""Templates, schedules, groups, offices, webhooks, events and the service at the command line."""

import json
import time
from pathlib import Path

from tests.cli.terminal import Terminal


def test_a_template_from_its_making_to_its_archiving(nextslot: Terminal) -> None:
    made = nextslot("template", "add", "hello", "echo", "text=hi", "number=2", "--priority", "4").word

    job = nextslot("template", "submit", "hello", "number=3", "--wait", "--json").json
    nextslot("template", "change", made[-8:], "text=ho", "--name", "other")

    assert (job["params"], job["priority"], job["template_id"]) == ({"text": "hi", "number": 3}, 4, made)
    assert ["other", "echo"] in [row[1:3] for row in nextslot("template", "ls").rows]
    assert nextslot("template", "show", "other", "--json").json["params"] == {"text": "ho", "number": 2}
    assert nextslot("template", "rm", "other").word == "other archived"
    assert "other" not in nextslot("template", "ls").out


def test_a_schedule_from_its_making_to_its_end(nextslot: Terminal) -> None:
    nextslot("template", "add", "nightly work", "echo")
    made = nextslot(
        "schedule", "add", "nightly", "0 3 * * *", "nightly work", "number=5", "--timezone", "Europe/Berlin"
    )

    job = nextslot("schedule", "trigger", "nightly").word
    upcoming = nextslot("schedule", "upcoming", "nightly", "-n", "3", "--json").json["items"]

    assert "03:00" in made.out
    assert nextslot("schedule", "preview", "0 3 * * *").out.startswith("At 03:00")
    assert nextslot("show", job, "--json").json["params"] == {"number": 5}
    assert ["03:00:00" in one["local"] for one in upcoming] == [True] * 3
    assert "disabled" in nextslot("schedule", "disable", "nightly").out
    assert "disabled" in nextslot("schedule", "ls").out
    assert nextslot("schedule", "enable", "nightly", "--json").json["next_trigger_at"] is not None
    assert nextslot("schedule", "show", "nightly").code == 0
    assert nextslot("schedule", "occurrences", "nightly", "--json").json["items"] is not None
    assert nextslot("schedule", "rm", "nightly").word == "nightly deleted"


def test_put_creates_then_changes(nextslot: Terminal) -> None:
    first = nextslot("template", "put", "deployed", "echo", "number=1")
    again = nextslot("template", "put", "deployed", "echo", "number=2")
    made = nextslot("schedule", "put", "deployed too", "0 3 * * *", "deployed")
    changed = nextslot("schedule", "put", "deployed too", "0 4 * * *", "deployed", "--json").json

    assert (first.word.split()[0], again.word.split()[0]) == ("created:", "changed:")
    assert made.out.startswith("created:")
    assert changed["cron_expression"] == "0 4 * * *"
    assert nextslot("template", "show", "deployed", "--json").json["params"] == {"number": 2}


def test_put_and_change_set_the_window_of_a_schedule(nextslot: Terminal) -> None:
    nextslot("template", "put", "windowed", "echo")
    put = ("schedule", "put", "windowed too", "0 3 * * *", "windowed", "--json")

    made = nextslot(*put, "--catch-up-window", "7200").json
    again = nextslot(*put, "--catch-up-window", "7200").json
    changed = nextslot("schedule", "change", "windowed too", "--catch-up-window", "60", "--json").json

    windows = [one["catch_up_window_seconds"] for one in (made, again, changed)]
    assert windows == [7200, 7200, 60]
    assert nextslot("schedule", "change", "windowed too", "--catch-up-window", "0").code == 1


def test_a_group_comes_from_a_file_or_from_stdin(nextslot: Terminal, tmp_path: Path) -> None:
    jobs = [{"job_type": "skip", "key": "a"}, {"job_type": "echo", "scheduled_for": "2999-01-01T00:00:00Z"}]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))

    made = nextslot("group", "add", str(tmp_path / "jobs.json"), "--name", "pair").word
    other = nextslot("group", "add", "-", "--parallel", typed=json.dumps(jobs)).word

    assert [job["job_type"] for job in nextslot("group", "show", "pair", "--json").json["jobs"]] == ["skip", "echo"]
    assert {row[0] for row in nextslot("group", "ls").rows} >= {made[-8:], other[-8:]}
    assert "echo" in nextslot("group", "show", made[-8:]).out
    assert "1 cancelled" in nextslot("group", "cancel", "pair").out
    assert nextslot("group", "add", "-", typed="{}").code == 2


def test_quotas_are_shown_with_their_use_and_granted(nextslot: Terminal) -> None:
    nextslot("office", "add", "bounded")
    nextslot("submit", "echo", "--office", "bounded", "--at", "2999-01-01T00:00:00Z")

    granted = nextslot("quota", "grant", "bounded", "queued_jobs=7", "stored_bytes=1000000000000", "--json").json
    rows = nextslot("quota", "show", "bounded").rows
    again = nextslot("quota", "grant", "bounded", "queued_jobs=null", "--json").json

    assert (granted["queued_jobs"], granted["stored_bytes"]) == (7, 10**12)
    assert ["queued_jobs", "7", "1"] in rows
    assert again["queued_jobs"] == 10_000_000
    assert nextslot("quota", "grant", "bounded", "lanterns=7").code == 1


def test_an_office_and_its_jobs(nextslot: Terminal) -> None:
    nextslot("office", "add", "team", "--name", "The Team")
    nextslot("office", "change", "team", "--status", "paused")
    config = nextslot("office", "config", "team", "maxConcurrentJobs=7", "--json").json

    job = nextslot(
        "office", "submit", "team", "build it", "text=x", "--role", "FE", "--type", "echo", "--task", "t1"
    ).word
    urgent = nextslot("office", "priority", "team", job[-8:], "--urgent", "--json").json

    assert config["maxConcurrentJobs"] == 7
    assert ["team", "The", "Team", "paused", "7"] in [row[:5] for row in nextslot("office", "ls").rows]
    assert urgent["job_id"] == job
    assert nextslot("office", "jobs", "team", "--status", "ready").rows[0][:3] == [job[-8:], "FE", "ready"]
    assert nextslot("office", "stats", "team", "--json").json["ready"] == 1
    assert "job_queued" in nextslot("office", "events", "team").out
    assert nextslot("office", "process", "team").word == "nothing was started"
    assert nextslot("office", "cancel-all", "team", typed="no\n").code == 1
    assert nextslot("office", "cancel-all", "team", "--yes").out.startswith("1 cancelled")
    assert nextslot("office", "show", "team", "--json").json["status"] == "paused"


def test_an_office_takes_a_graph_and_the_command_waits_for_it(nextslot: Terminal, tmp_path: Path) -> None:
    nextslot("office", "add", "graphs")
    jobs = [
        {"key": "a", "description": "first", "role": "BE", "job_type": "echo", "params": {"text": "x"}},
        {"description": "second", "role": "FE", "job_type": "echo", "params": {"text": "y"}, "depends_on": ["a"]},
    ]
    (tmp_path / "dag.json").write_text(json.dumps({"task_id": "login", "jobs": jobs}))
    failing = [{"key": "a", "description": "fails", "role": "BE", "job_type": "fail"}, {**jobs[1]}]

    done = nextslot("office", "submit", "graphs", "--graph", str(tmp_path / "dag.json"), "--wait", "--json").json
    nextslot("office", "config", "graphs", "maxRetries=0")
    lost = nextslot("office", "submit", "graphs", "--graph", "-", "--wait", typed=json.dumps(failing))

    assert [(one["status"], one["task_id"]) for one in done["items"]] == [("done", "login")] * 2
    assert lost.code == 1
    assert [row[2] for row in (line.split() for line in lost.out.splitlines()[1:])] == ["failed", "pending"]
    assert nextslot("office", "submit", "graphs").code == 2
    assert nextslot("office", "submit", "graphs", "--graph", "-", typed="{}").code == 2


def test_a_negative_priority_is_an_argument(nextslot: Terminal) -> None:
    nextslot("office", "add", "signs")
    nextslot("office", "change", "signs", "--status", "paused")
    job = nextslot("office", "submit", "signs", "build it", "--type", "echo").word

    changed = nextslot("office", "priority", "signs", job, "-5", "--json").json

    assert changed["priority"] == -5
    assert '"priority": -5' in nextslot("office", "events", "signs").out


def test_a_negative_priority_is_the_value_of_an_option(nextslot: Terminal) -> None:
    nextslot("office", "add", "minus")
    later = ("--at", "2999-01-01T00:00:00Z")

    job = nextslot("submit", "echo", "--office", "minus", "--priority", "-5", *later, "--json").json
    changed = nextslot("change", job["job_id"], "--priority", "-7", "--json").json
    template = nextslot("template", "add", "minus one", "echo", "--priority", "-1", "--json").json
    of_office = nextslot("office", "submit", "minus", "build", "--type", "echo", "--priority", "-3", "--json").json

    assert (job["priority"], changed["priority"], template["priority"], of_office["priority"]) == (-5, -7, -1, -3)


def test_the_roles_of_an_office_are_set_listed_and_removed(nextslot: Terminal) -> None:
    nextslot("office", "add", "roles")

    done = nextslot(
        "office", "role", "set", "roles", "QA", "--timeout", "90", "--env", "MODE=fast", "--", "sh", "-c", "cat; true"
    )
    [own] = [one for one in nextslot("office", "role", "ls", "roles", "--json").json["items"] if one["is_own"]]
    shown = nextslot("office", "role", "ls", "roles")

    assert done.word == "QA is set: sh -c 'cat; true'"
    del own["cwd"]
    assert own == {
        "role": "QA", "command": ["sh", "-c", "cat; true"], "env": ["MODE"], "timeout_ms": 90000, "max_concurrent": 1,
        "is_own": True, "resume_args": [], "resume_on": ["crash", "interrupted", "parked", "quota"],
        "session_id_pattern": None,
    }  # fmt: skip
    assert ["QA", "office", "90", "s", "1"] in [row[:5] for row in shown.rows]
    assert "=fast" not in shown.out
    assert nextslot("office", "role", "rm", "roles", "QA").word == "QA is as the configuration says"
    again = nextslot("office", "role", "rm", "roles", "QA")
    assert (again.code, "QA" in again.err) == (1, True)


def test_a_role_without_settings_or_with_a_wrong_variable_is_refused_with_a_sentence(nextslot: Terminal) -> None:
    nextslot("office", "add", "bad roles")

    nothing = nextslot("office", "role", "set", "default", "QA")
    wrong = nextslot("office", "role", "set", "default", "QA", "--env", "MODE")

    assert (nothing.code, wrong.code) == (2, 2)
    assert "give a command after --" in nothing.err
    assert "write --env NAME=VALUE" in wrong.err


def test_an_aged_job_says_so(nextslot: Terminal) -> None:
    nextslot("office", "add", "aging")
    nextslot("office", "change", "aging", "--status", "paused")
    config = nextslot("office", "config", "aging", "priorityAging=1000", "--json").json
    job = nextslot("submit", "echo", "--office", "aging").word

    shown, tries = "", 100
    while "aged" not in shown and tries > 0:
        time.sleep(0.05)
        shown, tries = nextslot("show", job).out, tries - 1

    assert config["priorityAging"] == 1000
    assert "by " in shown[shown.index("aged") :]
    assert "It was ready for long, and has aged by" in nextslot("why", job).out
    assert nextslot("office", "config", "aging", "priorityAging=5").code == 1
    assert nextslot("office", "config", "aging", "priorityAging=null", "--json").json["priorityAging"] is None


def test_an_office_job_is_cancelled_and_retried(nextslot: Terminal) -> None:
    nextslot("office", "add", "redo")
    job = nextslot("office", "submit", "redo", "fails", "--type", "fail", "--json").json["job_id"]
    nextslot("log", job, "-f")
    later = nextslot("office", "submit", "redo", "later", "--type", "skip", "--after", job).word

    assert nextslot("office", "cancel", "redo", later).word == f"{later} cancelled"
    assert nextslot("office", "retry", "redo", job).code == 0


def test_a_webhook_and_its_deliveries(nextslot: Terminal) -> None:
    made = nextslot("webhook", "add", "http://127.0.0.1:9/hook", "--events", "job.run.failed", "--json").json
    sent = nextslot("webhook", "test", "http://127.0.0.1:9/hook", "--json").json

    listed = nextslot("webhook", "ls")

    assert made["secret"].startswith("whsec_")
    assert listed.rows[0][:3] == [made["webhook_id"][-8:], "http://127.0.0.1:9/hook", "job.run.failed"]
    assert made["secret"] not in listed.out
    assert sent["delivery_id"] in nextslot("webhook", "deliveries").out
    assert nextslot("webhook", "rotate", made["webhook_id"]).out.startswith("secret: whsec_")
    assert nextslot("webhook", "disable", made["webhook_id"][-8:], "--json").json["enabled"] is False
    assert nextslot("webhook", "enable", made["webhook_id"][-8:], "--json").json["enabled"] is True
    assert nextslot("webhook", "show", made["webhook_id"]).code == 0
    assert nextslot("webhook", "rm", made["webhook_id"]).word.endswith("deleted")


def test_pauses_are_told(nextslot: Terminal) -> None:
    paused = nextslot("queue", "pause", "--type", "flaky")
    resumed = nextslot("queue", "resume", "--type", "flaky")

    assert "type flaky" in paused.out
    assert "type flaky" not in resumed.out
    assert nextslot("queue", "pause", "--type", "a", "--office", "b").code == 2


def test_events_are_shown_and_filtered(nextslot: Terminal) -> None:
    job = nextslot("submit", "skip", "--wait", "--json").json["job_id"]

    events = nextslot("events", "--job", job, "--json").json["items"]

    assert [event["type"] for event in events] == ["job_queued", "job_started", "job_skipped"]
    assert nextslot("events", "-n", "1", "--after", str(events[0]["seq"] - 1)).rows[0][0] == str(events[0]["seq"])
    assert "job_skipped" in nextslot("events").out


def test_the_service_is_shown_in_one_look(nextslot: Terminal) -> None:
    said = nextslot("status")

    assert "ready" in said.out
    assert "default" in said.out
    assert nextslot("status", "--json").json["last_event"] >= 0
    assert ["gated", "gate=…"] in [row[:2] for row in nextslot("types").rows]
    assert "POST" in nextslot("audit").out


def test_nodes_are_listed_and_one_is_drained_and_let_work_again(nextslot: Terminal) -> None:
    [node] = nextslot("node", "ls", "--json").json["items"]
    name = node["node_id"]

    drained = nextslot("node", "drain", name)
    listed = nextslot("node", "ls")
    back = nextslot("node", "drain", name, "--undo")

    assert drained.word == f"{name}: nothing runs there"
    assert listed.rows[0][:2] == [name, "draining"]
    assert back.word == f"{name} starts jobs again"
    assert nextslot("node", "drain", "nobody").code == 1
    assert "there is no node 'nobody'" in nextslot("node", "drain", "nobody").err
    assert nextslot("submit", "echo", "--wait").code == 0


def test_a_node_that_lives_is_not_forgotten(nextslot: Terminal) -> None:
    [node] = nextslot("node", "ls", "--json").json["items"]

    refused = nextslot("node", "rm", node["node_id"])

    assert (refused.code, refused.out) == (1, "")
    assert "is live: stop it first" in refused.err
    assert "there is no node 'nobody'" in nextslot("node", "rm", "nobody").err


def test_top_shows_what_runs_and_waits_in_order(nextslot: Terminal) -> None:
    first = nextslot("submit", "gated", "gate=top").word
    second = nextslot("submit", "echo", "--title", "the next one").word

    said = nextslot("top", "--once")

    nextslot("cancel", first, "--interrupt")
    assert "office default: 1 running" in said.out
    assert "50%" in said.out
    assert said.out.index(first[-8:]) < said.out.index(second[-8:]) < said.out.index("the next one")
    assert nextslot("top", "--json").json["office_id"] == "default"


def test_a_pipeline_from_its_file_to_its_ledger(nextslot: Terminal, tmp_path: Path) -> None:
    jobs = [{"key": "a", "job_type": "echo"}, {"job_type": "echo", "depends_on": ["a"], "params": {"number": 5}}]
    (tmp_path / "list.json").write_text(json.dumps(jobs))
    (tmp_path / "whole.json").write_text(json.dumps({"jobs": jobs, "mode": "sequential", "on_failure": "skip"}))

    nextslot("template", "add", "pipeline", "--group", str(tmp_path / "list.json"), "text=hi")
    nextslot("template", "put", "whole", "--group", str(tmp_path / "whole.json"))
    group = nextslot("template", "submit", "pipeline", "text=12", "--wait", "--json").json
    nextslot("schedule", "add", "of a pipeline", "@yearly", "pipeline", "number=7")
    triggered = nextslot("schedule", "trigger", "of a pipeline", "text=ho", "--wait", "--json").json

    assert (group["status"], group["mode"], group["members"]) == ("COMPLETED", "parallel", 2)
    assert [job["params"] for job in group["jobs"]] == [{"text": "12"}, {"text": "12", "number": 5}]
    assert [job["params"] for job in triggered["jobs"]] == [{"text": "ho", "number": 7}] * 2
    assert ["pipeline", "2", "jobs,", "parallel"] in [row[1:5] for row in nextslot("template", "ls").rows]
    assert nextslot("template", "show", "whole", "--json").json["on_failure"] == "skip"
    assert nextslot("group", "show", group["group_id"], "--json").json["name"] == "pipeline"


def test_a_pipeline_that_cannot_be_made_is_refused_with_a_sentence(nextslot: Terminal, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"job": []}')
    (tmp_path / "fails.json").write_text('[{"job_type": "fail", "retry_policy": {"max_attempts": 0}}]')

    unread = nextslot("template", "add", "x", "--group", str(tmp_path / "wrong.json"))
    untyped = nextslot("template", "add", "x")
    nextslot("template", "add", "failing pipeline", "--group", str(tmp_path / "fails.json"))
    followed = nextslot("template", "submit", "failing pipeline", "--follow")
    failed = nextslot("template", "submit", "failing pipeline", "--wait")

    assert (unread.code, "does not describe a group" in unread.err) == (2, True)
    assert (untyped.code, "neither TYPE nor --group" in untyped.err) == (2, True)
    assert (followed.code, "no log of its own" in followed.err) == (2, True)
    assert (failed.code, "PARTIAL" in failed.out) == (1, True)


def test_submit_and_templates_take_a_webhook_and_retries_and_a_schedule_can_be_changed(nextslot: Terminal) -> None:
    told = ("--webhook", "http://127.0.0.1:9/x", "--webhook-format", "slack", "--retries", "1", "--retry-on", "timeout")

    job = nextslot("submit", "echo", *told, "--json").json
    nextslot("template", "add", "told", "echo", *told)
    nextslot("schedule", "add", "nightly told", "0 3 * * *", "told")
    changed = nextslot("schedule", "change", "nightly told", "--cron", "0 4 * * *", "--json").json

    assert (job["webhook"]["format"], job["retry_policy"]["max_attempts"]) == ("slack", 1)
    assert nextslot("template", "show", "told", "--json").json["retry_policy"]["max_attempts"] == 1
    assert changed["cron_expression"] == "0 4 * * *"
    assert "--webhook URL" in nextslot("submit", "echo", "--webhook-format", "slack").err


def test_stats_are_a_line_for_each_step_and_a_sparkline(nextslot: Terminal) -> None:
    nextslot("submit", "skip", "--wait")

    shown = nextslot("stats", "--since", "3h", "--step", "1h")
    found = nextslot("stats", "--since", "30m", "--step", "5m", "--office", "default", "--type", "skip", "--json").json
    wrong = nextslot("stats", "--step", "7s")

    assert shown.out.splitlines()[-1].split()[0] == "ended"
    assert "█" in shown.out
    assert len(shown.rows) in (4, 5)
    assert sum(one["skipped"] for one in found["points"]) >= 1
    assert wrong.code == 1
    assert "must be one of 60" in wrong.err


def test_failures_that_are_alike_are_a_line_and_are_retried_muted_and_noted_by_their_beginning(
    nextslot: Terminal,
) -> None:
    for message in ("lost row 7 of cli", "lost row 8 of cli", "another"):
        nextslot("submit", "fail", f"message={message}", "--retries", "0", "--wait")

    listed = nextslot("failures", "--type", "fail", "--json").json
    [mine] = [one for one in listed["items"] if one["message"] == "lost row <n> of cli"]
    short = mine["fingerprint"][:8]
    assert mine["count"] == 2
    assert short in nextslot("failures").out
    assert "lost row <n> of cli" in nextslot("failures", short).out
    changed = nextslot("failures", short, "--mute", "--note", "see T-1", "--json").json
    assert (changed["muted"], changed["note"]) == (True, "see T-1")
    assert short not in nextslot("failures").out
    assert "(muted)" in nextslot("failures", "--muted").out
    assert nextslot("failures", short, "--note", "", "--unmute", "--json").json["note"] is None
    assert nextslot("failures", short, "--retry", "--yes").out.strip() == "2 retried"
    assert "give a fingerprint" in nextslot("failures", "--retry").err
    assert nextslot("failures", "ffffffff").code == 1
    assert "is the beginning of" in nextslot("failures", "").err


def test_a_query_in_one_line_finds_jobs_and_a_wrong_one_says_where_it_is_wrong(nextslot: Terminal) -> None:
    nextslot("submit", "echo", "text=cli", "--title", "the query of a terminal", "--wait")

    found = nextslot("ls", "-q", "type:echo params.text=cli quer term since:1h", "--json").json["items"]
    wrong = nextslot("ls", "-q", "colour:red")

    assert [one["title"] for one in found] == ["the query of a terminal"]
    assert wrong.code == 1
    assert "at character 1: 'colour' is no field" in wrong.err
