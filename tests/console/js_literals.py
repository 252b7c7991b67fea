"""Finds the literals of a JavaScript module: strings, and templates without their expressions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# What stands before a slash that begins a regular expression.
BEFORE_A_PATTERN = re.compile(r"(?:[(,=:\[!&|?{};\n]|=>|\breturn)\s*$|^$")


@dataclass
class Literal:
    """A literal: `pieces` is a template without a tag, whose expressions are `{}`; `markup` is one with a tag."""

    kind: str
    text: str
    # The code before it, and the function whose direct argument it is.
    before: str
    call: str | None


def literals(source: str) -> Iterator[Literal]:
    """Returns the literals in the order in which they end; comments and patterns have none."""
    # Open brackets, each with the function that a round one calls; a backtick stands for an open template.
    stack: list[tuple[str, str | None]] = []
    begun: list[tuple[int, str, list[str]]] = []
    at = 0
    while at < len(source):
        if stack and stack[-1][0] == "`":
            at = _in_template(source, at, stack, begun[-1][2])
            if (stack and stack[-1][0] == "`") or source[at - 1] != "`":
                continue
            begin, kind, text = begun.pop()
            yield Literal(kind, "".join(text), source[:begin][-80:], stack[-1][1] if stack else None)
            continue
        found = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.DOTALL).match(
            source, at
        )
        letter = source[at]
        if found is not None:
            if letter != "/":
                yield Literal("string", found[0][1:-1], source[:at][-80:], stack[-1][1] if stack else None)
            at = found.end()
        elif letter == "/" and BEFORE_A_PATTERN.search(source[:at][-12:]):
            at = _after_pattern(source, at)
        elif letter == "`":
            kind = "markup" if source[:at].endswith("html") else "pieces"
            begun.append((at, kind, []))
            stack.append(("`", None))
            at += 1
        else:
            if letter in "([{":
                name = re.search(r"(\w+)\s*$", source[:at])
                stack.append((letter, name[1] if letter == "(" and name else None))
            elif letter in ")]}" and stack:
                stack.pop()
            at += 1


def _in_template(source: str, at: int, stack: list[tuple[str, str | None]], text: list[str]) -> int:
    """Reads a piece of a template: a letter, the beginning of an expression, or the end."""
    if source[at] == "\\":
        text.append(source[at : at + 2])
        return at + 2
    if source.startswith("${", at):
        text.append("{}")
        stack.append(("{", None))
        return at + 2
    if source[at] == "`":
        stack.pop()
    else:
        text.append(source[at])
    return at + 1


def _after_pattern(source: str, at: int) -> int:
    """Returns the place after a regular expression that begins here."""
    is_class = False
    at += 1
    while at < len(source) and source[at] != "\n" and (is_class or source[at] != "/"):
        is_class = {"[": True, "]": False}.get(source[at], is_class)
        at += 2 if source[at] == "\\" else 1
    return at + 1
