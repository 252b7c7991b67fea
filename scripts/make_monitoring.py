"""Writes the alert rules and the dashboard in examples/monitoring, from the page on operations and the list below.

    uv run python scripts/make_monitoring.py

docs/operations.md has the rules that readers copy; here each gets a sentence for the person it wakes. A test fails
while the files are not what this makes.
"""

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples/monitoring"

# By alert: how urgent it is, and what is wrong and what to do.
MEANINGS = {
    "NotReady": ("page", "The server does not take or run jobs: `nextslot status` says why."),
    "DiskNearlyFull": ("page", "Less than 2 GB are left; below [store] disk_refuse_bytes nothing new is taken: free space, or set [retention]."),
    "JobsWaitTooLong": ("ticket", "The oldest job that is free to go waits for more than an hour: `nextslot queue` and `nextslot why` say for what."),
    "SlotsAreFull": ("ticket", "A limit has been full for six hours: raise it, or add capacity."),
    "ForgottenPause": ("ticket", "Something has been paused for a day: `nextslot queue resume` ends it."),
    "ResourceDown": ("page", "A resource has not answered for ten minutes; jobs that need it wait."),
    "RunsFail": ("ticket", "More than a fifth of the runs of a type fail: `nextslot ls --filter status=FAILED`."),
    "JobsLostForGood": ("ticket", "A job has failed after its last retry: `nextslot ls --filter status=FAILED`, then `nextslot retry`."),
    "RunsWereLost": ("ticket", "The last start found runs that a crash had ended; they were tried again."),
    "EventLoopIsBlocked": ("ticket", "A handler blocks the event loop; the log names it and the line."),
    "SlowHandOver": ("ticket", "The next job starts late after the last: the disk or the database is slow."),
    "StoreFails": ("page", "The database did not do what it was asked for; the log says why."),
    "SlowStore": ("ticket", "Commits are slow: the disk, or the way to the database."),
    "WebhooksFail": ("ticket", "A message was given up after its retries: `nextslot webhook deliveries`."),
    "FollowerIsBehind": ("ticket", "A program that follows the events is slower than they come."),
    "ServerErrors": ("page", "The server answers with errors of its own; the log has their request ids."),
}  # fmt: skip

# Title, unit, and its lines: a legend and a query each.
PANELS = [
    ("Ready", "bool", [("{{instance}}", "nextslot_ready")]),
    ("Jobs that have not ended", "short", [("{{status}}", "sum by (status) (nextslot_jobs)")]),
    ("Oldest job that is free to go", "s", [("{{office}}", "nextslot_oldest_queued_seconds")]),
    ("Ended jobs", "cps", [("{{type}}", 'sum by (type) (rate(nextslot_events_total{type=~"job_completed|job_failed|job_skipped|job_timeout|job_failed_permanently"}[5m]))')]),
    ("Limits in use", "percentunit", [("{{limit}}", "nextslot_limit_used / nextslot_limit_capacity")]),
    ("Run time, 95 %", "s", [("{{job_type}}", "histogram_quantile(0.95, sum by (le, job_type) (rate(nextslot_run_duration_seconds_bucket[30m])))")]),
    ("Failures by kind", "cps", [("{{failure_kind}}", "sum by (failure_kind) (rate(nextslot_run_failures_total[30m]))")]),
    ("Direct callers", "short", [("{{office}} {{status}}", "nextslot_direct_callers")]),
    ("Resources that do not answer", "s", [("{{resource}}", "nextslot_resource_held_seconds")]),
    ("Hand-over, 99 %", "s", [("hand-over", "histogram_quantile(0.99, sum by (le) (rate(nextslot_handover_seconds_bucket[10m])))")]),
    ("Commits, 99 %", "s", [("write", "histogram_quantile(0.99, sum by (le) (rate(nextslot_store_write_seconds_bucket[10m])))"), ("read", "histogram_quantile(0.99, sum by (le) (rate(nextslot_store_read_seconds_bucket[10m])))")]),
    ("Requests by status", "reqps", [("{{status}}", "sum by (status) (rate(nextslot_http_requests_total[5m]))")]),
    ("Webhook deliveries", "cps", [("{{status}}", "sum by (status) (rate(nextslot_webhook_deliveries_total[30m]))")]),
    ("Free disk space", "bytes", [("{{instance}}", "nextslot_disk_free_bytes")]),
]  # fmt: skip


def rules_of_the_page() -> dict[str, Any]:
    """Returns the rules that docs/operations.md shows."""
    page = (ROOT / "docs/operations.md").read_text()
    block = page.split("\n## Alerts\n")[1].split("```yaml\n")[1].split("```")[0]
    found: dict[str, Any] = yaml.safe_load(block)
    return found


def alerts() -> str:
    found = rules_of_the_page()
    for rule in found["groups"][0]["rules"]:
        severity, sentence = MEANINGS[rule["alert"]]
        rule["labels"] = {"severity": severity}
        rule["annotations"] = {"summary": sentence}
    head = "# Made by scripts/make_monitoring.py from docs/operations.md.\n"
    text: str = yaml.safe_dump(found, sort_keys=False, width=1000, allow_unicode=True)
    return head + text


def dashboard() -> str:
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": number, "title": title, "type": "timeseries", "datasource": source,
            "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(65 + place), "datasource": source, "expr": query, "legendFormat": legend}
                for place, (legend, query) in enumerate(lines)
            ],
        }
        for number, (title, unit, lines) in enumerate(PANELS)
    ]  # fmt: skip
    made = {
        "title": "nextslot", "uid": "nextslot", "schemaVersion": 39, "refresh": "30s", "tags": ["nextslot"],
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }  # fmt: skip
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


FILES = {"alerts.yml": alerts, "dashboard.json": dashboard}

if __name__ == "__main__":
    for name, make in FILES.items():
        (FOLDER / name).write_text(make())
