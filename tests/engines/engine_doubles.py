"""An engine that behaves as badly as real ones do on their worst days; what it starts are real processes."""

from collections.abc import Mapping, Sequence

from nextslot.executors.engines.contract import Key, Seen, Sight, Submission, Unreachable
from nextslot.executors.engines.local_engine import LocalEngine


class LyingEngine(LocalEngine):
    """Loses every second answer, starts each submission twice, gives the same handle to all runs, goes back in state,
    says that running work has ended, forgets stops, and does not answer each third question.
    """

    def __init__(self) -> None:
        self.submissions = 0
        self.questions = 0
        self.is_there = True

    def submit(self, submission: Submission) -> str:
        self._answer()
        self.submissions += 1
        super().submit(submission)
        super().submit(submission)
        if self.submissions % 2:
            raise Unreachable("the connection was lost after the submission")
        return "1"

    def find(self, run_id: str) -> list[str]:
        self._answer()
        return ["1" for _ in super().find(run_id)]

    def observe(self, keys: Sequence[Key]) -> Mapping[str, Seen]:
        self._answer()
        self.questions += 1
        if self.questions % 3 == 0:
            raise Unreachable("it is busy")
        sights = (Sight.ENDED, Sight.QUEUED)
        return {key.run_id: Seen(sights[self.questions % 2]) for key in keys}

    def stop(self, key: Key, grace_seconds: float) -> None:
        self._answer()

    def _answer(self) -> None:
        if not self.is_there:
            raise Unreachable("it is not there")
