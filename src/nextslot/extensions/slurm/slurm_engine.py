"""SlurmEngine: submits, finds, observes and cancels batch jobs with sbatch, squeue, scontrol and scancel.

The name of a batch job is the run's id. Every request uses that name: if a crash of Slurm's controller loses a job,
Slurm gives the number of the job to another one.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nextslot.errors import Problem
from nextslot.executors.engines.contract import Cause, EngineKind, Key, Refused, Seen, Sight, Submission, Unreachable

ANSWER_SECONDS = 30.0
# How many runs one squeue is asked for: Linux starts no program with an argument of more than 128 KiB.
MOST_NAMES = 1000
# The option of sbatch for each engine option.
OPTIONS = {
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "gres": "--gres",
    "constraint": "--constraint",
    "time": "--time",
    "cpus": "--cpus-per-task",
    "memory": "--mem",
}
NUMBERS = frozenset({"cpus"})
# Options of the server itself: the file that the commands read, and the directory of the commands.
CONFIG, PROGRAMS = "config_file", "programs"
# The variables of the server that a batch job gets: none that could be a secret.
EXPORTED = "HOME,USER,LOGNAME,SHELL,LANG,PATH"
QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED"}
    | {"TIMEOUT"}
)
CAUSES = {
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "CANCELLED": Cause.CANCELLED,
    "PREEMPTED": Cause.PREEMPTED,
    "NODE_FAIL": Cause.PREEMPTED,
    "REVOKED": Cause.PREEMPTED,
}
# Messages of sbatch after which a repetition may help. Every other message is an answer.
_SILENT = re.compile(
    r"Unable to contact|timed out|Connection refused|Zero Bytes|[Aa]uthentication|munge|temporarily|Socket|"
    r"Unexpected message|Resource temporarily unavailable|in standby mode|Slurm backup controller",
)


class SlurmEngine:
    def __init__(self, options: Mapping[str, Any]) -> None:
        programs = options.get(PROGRAMS)
        self._prefix = "" if programs is None else f"{programs}/"
        self._environment = dict(os.environ)
        if CONFIG in options:
            self._environment["SLURM_CONF"] = options[CONFIG]

    def submit(self, submission: Submission) -> str:
        log = submission.directory / "engine.log"
        argv = [
            "sbatch",
            "--parsable",
            "--no-requeue",
            f"--job-name={submission.run_id}",
            f"--output={log}",
            "--open-mode=append",
            f"--chdir={submission.directory}",
            f"--export={EXPORTED}",
        ]
        for name, value in submission.options.items():
            if name in OPTIONS:
                argv.append(f"{OPTIONS[name]}={value}")
        script = f"#!/bin/sh\nexec {shlex.join(submission.argv)}\n"
        done = self._run(argv, script)
        if done.returncode:
            said = _said(done)
            if not said or _SILENT.search(said):
                raise Unreachable(said or f"sbatch ended with {done.returncode}")
            raise Refused(said)
        number = done.stdout.strip().partition(";")[0]
        if not number.isdigit():
            raise Unreachable(f"sbatch did not say which job it made: {done.stdout!r}")
        return number

    def find(self, run_id: str) -> list[str]:
        return [number for number, state, _, _ in self._jobs([run_id]) if state not in ENDED]

    def observe(self, keys: Sequence[Key]) -> Mapping[str, Seen]:
        # Without a name, squeue would list the jobs of all users.
        names = [key.run_id for key in keys] or ["nextslot-is-there"]
        rows: dict[str, list[tuple[str, str, str, str]]] = {}
        for begin in range(0, len(names), MOST_NAMES):
            for row in self._jobs(names[begin : begin + MOST_NAMES]):
                rows.setdefault(row[2], []).append(row)
        return {key.run_id: _seen(rows.get(key.run_id, ())) for key in keys}

    def logs(self, key: Key, offset: int) -> bytes:
        done = self._answer(["scontrol", "show", "job", "--oneliner", key.handle], is_missing_allowed=True)
        found = re.search(rf"JobName={re.escape(key.run_id)}\b.* StdOut=(\S+)", done)
        if found is None:
            return b""
        try:
            return Path(found[1]).read_bytes()[offset:]
        except OSError:
            return b""

    def stop(self, key: Key, grace_seconds: float) -> None:
        """Cancels by name and number together, so that no other job with the same number is cancelled."""
        self._answer(["scancel", f"--name={key.run_id}", key.handle], is_missing_allowed=True)

    def forget(self, key: Key) -> None:
        """Does nothing: Slurm forgets a job after its MinJobAge."""

    def _jobs(self, names: Sequence[str]) -> list[tuple[str, str, str, str]]:
        """Returns number, state, name and reason of every job with one of these names, oldest first."""
        argv = ["squeue", "--noheader", "--states=all", f"--name={','.join(names)}", "--format=%A|%T|%j|%r"]
        rows = [line.strip().split("|", 3) for line in self._answer(argv).splitlines() if line.count("|") >= 3]
        return sorted(((a, b, c, d) for a, b, c, d in rows), key=lambda row: int(row[0]))

    def _answer(self, argv: list[str], is_missing_allowed: bool = False) -> str:
        done = self._run(argv)
        said = _said(done)
        if done.returncode and not (is_missing_allowed and "Invalid job id" in said):
            raise Unreachable(f"{argv[0]}: {said or f'exit code {done.returncode}'}")
        return done.stdout

    def _run(self, argv: list[str], stdin: str = "") -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                [self._prefix + argv[0], *argv[1:]],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_SECONDS,
                env=self._environment,
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{argv[0]} did not answer within {ANSWER_SECONDS:g} seconds") from error
        except OSError as error:
            raise Unreachable(f"{argv[0]} cannot be run on this node: {error.strerror}") from error


def _said(done: "subprocess.CompletedProcess[str]") -> str:
    return " ".join(done.stderr.split())[:1000]


def _seen(rows: Sequence[tuple[str, str, str, str]]) -> Seen:
    """Returns the state that counts among all jobs with a run's name: unfinished jobs count before ended ones."""
    if not rows:
        return Seen(Sight.ABSENT)
    for _, state, _, reason in rows:
        if state not in ENDED:
            is_queued = state in QUEUED
            return Seen(Sight.QUEUED if is_queued else Sight.RUNNING, f"Slurm: {state}, {reason}" if is_queued else "")
    _, state, _, reason = rows[-1]
    words = f"{state} ({reason})" if reason not in ("", "None") else state
    return Seen(Sight.ENDED, words, CAUSES.get(state))


def _check(options: Mapping[str, Any]) -> Iterator[Problem]:
    known = [*OPTIONS, CONFIG, PROGRAMS]
    for name, value in options.items():
        if name not in known:
            yield Problem(name, f"is not an option of Slurm here; there are: {', '.join(known)}")
        elif name in NUMBERS and (type(value) is not int or value < 1):
            yield Problem(name, "is not a whole number above 0; write for example 2")
        elif name not in NUMBERS and (not isinstance(value, str) or not value or "\n" in value):
            yield Problem(name, 'is not a text; write for example "debug"')


KIND = EngineKind(
    make=lambda name, options: SlurmEngine(options),
    check=_check,
    engine_only=(CONFIG, PROGRAMS),
    variables=("SLURM", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    poll_seconds=2.0,
)
