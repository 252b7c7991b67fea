"""Makes mutants of a module: copies with one small change each, like a programmer's slip. Used by `scripts/mutate.py`.

A mutant changes only what can matter to a caller: no documentation, annotation, log line or error text.
"""

import ast
import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_WORD = re.compile(r"[a-z][a-z_.]*")


class Mutant(NamedTuple):
    """One small change: the number of the changed node in the order of `ast.walk`, and which of its alternatives
    replaces it.
    """

    line: int
    change: str
    node: int
    way: int


NOTHING = Mutant(0, "nothing", -1, 0)


def mutants(source: str) -> Iterator[Mutant]:
    """Yields every mutant of the functions in this module, in the order of its lines."""
    tree = ast.parse(source)
    ignored = {id(node) for part in _ignored(tree) for node in ast.walk(part)}
    inside = {id(node) for part in _bodies(tree) for node in ast.walk(part)}
    found = [
        Mutant(node.lineno, f"{_shown(node)} → {_shown(other)}", number, way)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, (ast.stmt, ast.expr)) and id(node) in inside and id(node) not in ignored
        for way, other in enumerate(_ways(node))
    ]
    yield from sorted(found)


def changed(source: str, mutant: Mutant) -> ast.Module:
    """Returns the module with this mutant's change."""
    tree = ast.parse(source)
    if mutant is not NOTHING:
        before = next(islice(ast.walk(tree), mutant.node, None))
        _replace(tree, before, _ways(before)[mutant.way])
    return ast.fix_missing_locations(tree)


def _bodies(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from node.body


def _ignored(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Raise, ast.JoinedStr)):
            yield from (part for part in ast.walk(node) if isinstance(part, ast.Constant))
        elif isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom)) or _is_log(node) or _is_text(node):
            yield node
        elif isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from node.decorator_list
            yield from [node.returns] if node.returns else []
        elif isinstance(node, ast.ClassDef):
            yield from [*node.decorator_list, *node.bases, *node.keywords]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield node


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_log(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node.value).startswith(("log.", "logging."))


def _ways(node: ast.AST) -> list[ast.AST]:
    """Returns the nodes that can replace this node."""
    match node:
        case ast.Compare(left, [operator], [right]):
            return [ast.Compare(left, [_COMPARISONS[type(operator)]()], [right])]
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            return [ast.BoolOp(other, values)]
        case ast.UnaryOp(ast.Not(), operand) | ast.UnaryOp(ast.USub(), operand):
            return [operand]
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            return [ast.BinOp(left, _OPERATORS[type(operator)](), right)]
        case ast.AugAssign(target, operator, value) if type(operator) in _OPERATORS:
            return [ast.AugAssign(target, _OPERATORS[type(operator)](), value), ast.Pass()]
        case ast.Constant(value):
            return [ast.Constant(other) for other in _other_values(value)]  # type: ignore[arg-type, unused-ignore]
        case ast.Call(ast.Name(name), arguments, keywords) if name in _CALLS:
            return [ast.Call(ast.Name(_CALLS[name], ast.Load()), arguments, keywords)]
        case ast.IfExp(test, body, orelse):
            return [ast.IfExp(test, orelse, body)]
        case ast.If(test, body, orelse) | ast.While(test, body, orelse):
            return [type(node)(ast.UnaryOp(ast.Not(), test), body, orelse)] if not _is_swapped_by_its_test(test) else []
        case ast.Break():
            return [ast.Continue()]
        case ast.Continue():
            return [ast.Break()]
        case ast.Expr(ast.Call() | ast.Await()) | ast.Delete():
            return [ast.Pass()]
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            return [ast.Return(ast.Constant(None))]
    return []


def _is_swapped_by_its_test(test: ast.expr) -> bool:
    """Returns whether the mutant of the test itself already swaps the branches: a plain comparison or a `not`."""
    is_plain = isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In))
    return is_plain or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _other_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1]
    if isinstance(value, str) and _WORD.fullmatch(value):
        return [value + "x"]
    return []


def _replace(tree: ast.AST, before: ast.AST, after: ast.AST) -> None:
    ast.copy_location(after, before)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is before:
                setattr(parent, name, after)
                return
            if isinstance(value, list) and any(one is before for one in value):
                value[[one is before for one in value].index(True)] = after
                return
    raise AssertionError("a node is in its tree")


def _shown(node: ast.AST) -> str:
    if isinstance(node, (ast.If, ast.While)):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    return ast.unparse(node)
