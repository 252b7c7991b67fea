"""The alert rules and the dashboard: made of the docs, about metrics that there are, tried by Prometheus' own tool."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scripts import make_monitoring

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples/monitoring"
COMPOSE = ROOT / "examples/compose"


@pytest.mark.parametrize("name", make_monitoring.FILES)
def test_the_files_are_made_of_the_docs(name: str) -> None:
    assert (MONITORING / name).read_text() == make_monitoring.FILES[name]()


def test_rules_and_panels_use_metrics_of_the_docs() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    known = {found + suffix for found in re.findall(r"^\| `(nextslot_\w+)`", page, re.MULTILINE) for suffix in SUFFIXES}

    used = {name for one in queries() for name in re.findall(r"\bnextslot_\w+", one)}

    assert used - known == set()


SUFFIXES = ("", "_bucket", "_sum", "_count")


def test_prometheus_reads_the_rules_and_the_configuration(promtool: str, tmp_path: Path) -> None:
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    (tmp_path / "key").write_text("secret")
    configuration = (COMPOSE / "prometheus.yml").read_text()
    configuration = configuration.replace("/etc/prometheus/alerts.yml", "alerts.yml")
    (tmp_path / "prometheus.yml").write_text(configuration.replace("/run/secrets/metrics_key", "key"))

    assert "SUCCESS: 16 rules found" in tried(promtool, tmp_path, "check", "config", "prometheus.yml")


def test_each_alert_fires_when_it_should_and_not_else(promtool: str) -> None:
    tried(promtool, MONITORING, "test", "rules", "alerts_test.yml")


def test_prometheus_reads_every_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(queries())]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    tried(promtool, tmp_path, "check", "rules", "panels.yml")


def test_the_compose_file_mounts_files_that_there_are() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    mounted = [volume.split(":")[0] for one in services.values() for volume in one.get("volumes", ())]
    build = services["nextslot"]["build"]

    assert [one for one in mounted if one.startswith(".") and not (COMPOSE / one).exists()] == []
    assert (COMPOSE / build["context"] / build["dockerfile"]).exists()
    for name in ("grafana.yaml", "dashboards.yaml"):
        assert yaml.safe_load((COMPOSE / name).read_text())["apiVersion"] == 1


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        assert not os.environ.get("CI"), "there is no promtool (apt-get install prometheus)"
        pytest.skip("there is no promtool (apt-get install prometheus)")
    return found


def tried(promtool: str, directory: Path, *words: str) -> str:
    done = subprocess.run([promtool, *words], cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def queries() -> Iterator[str]:
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for rule in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]:
        yield rule["expr"]
