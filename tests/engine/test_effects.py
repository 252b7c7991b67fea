"""Effects are values that one interpreter carries out: each has a component, and nothing else follows a commit."""

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest

import nextslot
from nextslot import Scheduler
from nextslot.engine import effects
from nextslot.store.sqlite.sqlite_store import SqliteStore
from tests import databases
from tests.support import named, new_scheduler, register_handlers

SOURCE = Path(nextslot.__file__).parent


@pytest.mark.real_time
async def test_every_effect_has_the_component_that_carries_it_out(tmp_path: Path) -> None:
    runtime = new_scheduler(tmp_path)._runtime
    interpreter = runtime.interpreter(runner := runtime.new_runner(), runtime.new_placed_runner(runner))

    assert interpreter._updates.keys() | interpreter._actions.keys() == set(declared_effects())
    assert interpreter._updates.keys() & interpreter._actions.keys() == {effects.WakeBy}


def declared_effects() -> list[type]:
    """Yields every named tuple of `engine/effects.py`, except the parts of a launch."""
    found = [kind for kind in vars(effects).values() if isinstance(kind, type) and hasattr(kind, "_fields")]
    return [kind for kind in found if kind.__module__ == effects.__name__ and kind is not effects.Claim]


def test_whatever_is_caused_is_declared_as_an_effect() -> None:
    """`tx.cause` is given a value of `engine/effects.py`, or a name that was bound to one."""
    declared = {kind.__name__ for kind in declared_effects()}
    caused = [call.args[0] for file in SOURCE.rglob("*.py") for call in calls_of(file, "cause")]
    called = [argument.func for argument in caused if isinstance(argument, ast.Call)]
    made = {function.id for function in called if isinstance(function, ast.Name)}
    bound = {argument.id for argument in caused if isinstance(argument, ast.Name)}

    assert made <= declared
    assert made | {"SlotsChanged", "LanesLearned"} == declared
    assert bound == {"change", "known"}, "the two that grow while their transaction works"


def test_one_effect_that_fails_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    stopped: list[str] = []

    def fail(chain_id: str) -> None:
        raise ValueError(chain_id)

    interpreter = effects.Interpreter({}, {effects.ChainEnded: fail, effects.Launch: stopped.append})
    interpreter.carry_out([effects.ChainEnded("a"), effects.Launch("b"), effects.ChainEnded("c")])  # type: ignore[arg-type]

    assert stopped == ["b"]
    assert caplog.text.count("the effect ChainEnded of a committed transaction failed") == 2


@pytest.mark.parametrize("is_inline", [True, False])
@pytest.mark.real_time
async def test_two_callers_in_one_group_commit_are_each_named_in_what_they_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_inline: bool
) -> None:
    monkeypatch.setattr(SqliteStore, "is_inline", lambda self, rows: is_inline)

    async def ask(scheduler: Scheduler, who: str) -> tuple[str | None, str | None]:
        services = named(scheduler, who, f"POST by {who}")
        made, _ = await services.webhooks.create("http://127.0.0.1:9/")
        key, _ = await services.keys.create(who, ["admin"])
        return made.created_by, key.created_by

    scheduler = Scheduler(databases.url(tmp_path), data=tmp_path)
    register_handlers(scheduler)
    async with scheduler:
        names = ["anna", "ben", "chris"]
        found = await asyncio.gather(*(asyncio.create_task(ask(scheduler, name)) for name in names))
        entries = (await scheduler.lists.audit()).items

        assert found == [(name, name) for name in names]
        assert all(entry.action == f"POST by {entry.actor}" for entry in entries)
        assert sorted(entry.actor for entry in entries) == sorted(names * 2)


def calls_of(file: Path, method: str) -> list[ast.Call]:
    tree = ast.parse(file.read_text())
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
    ]


async def test_a_request_that_is_refused_at_once_costs_its_group_nothing(tmp_path: Path) -> None:
    """Also one whose caller is named in the audit log: nothing is touched before the work itself decides."""
    sizes: list[int] = []

    async def ask(scheduler: Scheduler, number: int) -> object:
        wanted = "work" if number % 2 else "nothing"
        return await asyncio.gather(named(scheduler, f"caller {number}").submit(wanted), return_exceptions=True)

    scheduler = new_scheduler(tmp_path)
    async with scheduler:
        store: Any = scheduler._access.store
        transaction = store.transaction

        def counted(works: list[Any]) -> Any:
            sizes.append(len(works))
            return transaction(works)

        store.transaction = counted
        await asyncio.gather(*(asyncio.create_task(ask(scheduler, number)) for number in range(6)))
    assert sizes[0] == 6
    assert max(sizes[1:], default=0) <= 3, "no second attempt of the group"
