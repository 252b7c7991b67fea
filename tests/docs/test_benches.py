"""The benches that describe the engine's own statements still run: a renamed statement would break them silently."""

from pathlib import Path

from bench import handover


def test_the_raw_loop_of_hand_overs_runs_beside_the_engine(tmp_path: Path) -> None:
    found = handover.measure(backlog=2, jobs=3, slots=1, parent=tmp_path)

    assert found.keys() == {"raw", "engine"}
    assert all(figures["per_second"] > 0 for figures in found.values())
