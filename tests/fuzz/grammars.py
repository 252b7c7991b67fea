"""What the edges are given: text, JSON, cron, configuration and arguments that are nearly right, and hostile."""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.support import IS_ALL

# `NEXTSLOT_FUZZ=5000` looks much longer, and elsewhere each time.
WANTED = os.environ.get("NEXTSLOT_FUZZ")


def fuzzed(examples: int) -> settings:
    """Runs a test with a number of examples, always the same ones. If NEXTSLOT_FUZZ is set, it runs that many, and
    different ones each time.
    """
    return settings(
        max_examples=int(WANTED) if WANTED else examples * (4 if IS_ALL else 1),
        derandomize=WANTED is None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if WANTED else [])],
        suppress_health_check=list(HealthCheck),
    )


HOSTILE = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\r\n",
        "\x1b[2J\x1b]0;title\a",
        "\x7f\x85\u2028\u2029",
        "\ufeff",
        "\ufffe\uffff",
        "\ud800",
    ),
    *("\u202e\u2066right to left\u2069", "<script>hacked=1</script>", "<img src=x onerror=hacked=1>", "</script><b>"),
    *("' or 1=1 --", "%", "_%\\", "${7*7}{{7*7}}", "../../etc/passwd", "-1", "--help", "@yearly", "nan", "1e999"),
    *("true", "null", "[]", "{}", "9" * 400, "é" * 129, "💥" * 50, "a\u0300" * 200, "٣", "１２"),
)
texts = st.sampled_from(HOSTILE) | st.text(max_size=40) | st.text(alphabet="*/-,0123456789 @:.=[]{}\"'#\n", max_size=30)
numbers = st.integers(-3, 70) | st.sampled_from((2**31, 2**53, 2**63, -(2**63) - 1, 10**30, -0.0, 1e308, 0.1, 1e-320))
scalars = st.none() | st.booleans() | numbers | texts


def json_values(leaves: "st.SearchStrategy[Any]" = scalars) -> "st.SearchStrategy[Any]":
    return st.recursive(
        leaves, lambda some: st.lists(some, max_size=3) | st.dictionaries(texts, some, max_size=3), max_leaves=6
    )


# Cron: fields that are nearly right.
_number = st.integers(-1, 70).map(str)
_name = st.sampled_from(("JAN", "feb", "Mon", "SUN", "xyz", "L", "W", "5#3", "?", "*"))
_atom = _number | _name
_range = st.tuples(_atom, st.sampled_from(("-", "/", "~", "")), _atom).map("".join)
_item = _atom | _range | st.tuples(_range, st.just("/"), _number).map("".join)
_field = st.lists(_item, min_size=1, max_size=3).map(",".join)
crons = st.lists(_field, min_size=3, max_size=7).map(" ".join) | st.sampled_from(("@daily", "@reboot", "@")) | texts
zones = st.sampled_from(("UTC", "Europe/Berlin", "Asia/Kathmandu", "Etc/GMT+12", "posix", "localtime", "..")) | texts
