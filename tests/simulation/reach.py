"""Counts in how many histories each branch of the deciding code is met.

`python -m tests.simulation.reach FIRST COUNT` simulates so many seeds in this process, with a mark at the beginning of
each branch, and prints for each branch in how many of them it was met. Measuring coverage would take three times as
long; the marks cost next to nothing. `test_reach.py` compares the result with `seldom_reached.txt`.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parents[2] / "src" / "nextslot"
LENGTH = 24
# Of so many seeds one has a second history, with an engine.
WITH_ENGINE_EVERY = 20
# The code that decides. What only translates, stores or shows has tests of its own.
DECIDING = (
    "domain.job_lifecycle",
    "domain.retry",
    "domain.catch_up",
    "domain.group_failure",
    "domain.dependency_failure",
    "domain.limits",
    "engine.submit.queue_order",
    "engine.submit.idempotency",
    "engine.dispatch.affinity",
    "engine.dispatch.dispatcher",
    "engine.dispatch.dispatch_round",
    "engine.dispatch.fairness",
    "engine.dispatch.starvation",
    "engine.dispatch.resource_outages",
    "engine.dispatch.limits_and_slots",
    "engine.dispatch.rates",
    "engine.signals.signals",
    "engine.execution.runner",
    "engine.execution.timeouts",
    "engine.finish.dependents",
    "engine.finish.group_progress",
    "engine.finish.job_finisher",
    "engine.finish.retries",
    "engine.direct.direct_requests",
    "engine.schedules.schedule_trigger",
    "engine.cluster.recovery",
    "engine.cluster.clock_steps",
    "engine.events.event_feed",
    "engine.webhooks.delivery_worker",
    "engine.retention",
)


class Marks(ast.NodeTransformer):
    """Puts a mark at the beginning of each branch, and names the branch by the text of its condition."""

    def __init__(self, module: str, source: str) -> None:
        self._module = module
        self._source = source
        self.names: list[str] = []

    def _marked(self, body: list[ast.stmt], node: ast.AST, what: str) -> list[ast.stmt]:
        text = (ast.get_source_segment(self._source, node) or "").partition("\n")[0].strip()
        name = f"{self._module} | {what} {text}"
        while name in self.names:
            name += " again"
        self.names.append(name)
        mark = ast.parse(f"__reached__.add({name!r})").body
        return [*(ast.copy_location(ast.fix_missing_locations(one), body[0]) for one in mark), *body]

    def visit_If(self, node: ast.If) -> ast.If:
        is_chained = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        self.generic_visit(node)
        node.body = self._marked(node.body, node.test, "if")
        if node.orelse and not is_chained:
            node.orelse = self._marked(node.orelse, node.test, "else of")
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.body = self._marked(node.body, node.iter, "for")
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        node.body = self._marked(node.body, node.test, "while")
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        node.body = self._marked(node.body, node.type or node, "except")
        return node


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the deciding modules with their marks."""

    def __init__(self) -> None:
        self.reached: set[str] = set()
        self.names: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.removeprefix("nextslot.") not in DECIDING:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix("nextslot.")
        file = PACKAGE / (name.replace(".", "/") + ".py")
        source = file.read_text(encoding="utf-8")
        marks = Marks(name, source)
        tree = ast.fix_missing_locations(marks.visit(ast.parse(source)))
        self.names += marks.names
        module.__dict__["__reached__"] = self.reached
        module.__file__ = str(file)
        exec(compile(tree, str(file), "exec"), module.__dict__)


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    finder = Finder()
    sys.meta_path.insert(0, finder)
    logging.disable(logging.CRITICAL)
    from nextslot.testing.simulation import plan, world
    from tests.simulation.placing_clients import PlacingClients, actions_of

    met: Counter[str] = Counter()
    for seed in range(first, first + count):
        finder.reached.clear()
        world.simulate(seed, plan.make(seed, LENGTH))
        if seed % WITH_ENGINE_EVERY == 0:
            world.simulate(seed, actions_of(seed), clients=PlacingClients)
        met.update(finder.reached)
    sys.stdout.write(json.dumps({name: met[name] for name in finder.names}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
