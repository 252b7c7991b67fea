"""What mkdocs calls while it builds the site: links of docs/ to other files of the repository lead to copies, and
diagrams become pictures, without a program that browsers would have to fetch from elsewhere."""

import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^```(\w+) [\w-]+$", re.MULTILINE)
_DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ARROW = re.compile(r"^ +(\S+) --> (\w+): (.*)$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the files to which pages link, as they are."""
    linked = {found[2] for one in files.documentation_pages() for found in _OUTSIDE.finditer(one.content_string)}
    for name in sorted(linked):
        if (ROOT / name).is_file():
            files.append(File.generated(config, _copy_of(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    # Words after the language are for tests; mkdocs would take the block for text.
    return _OUTSIDE.sub(_inside, _FENCE.sub(r"```\1", _DIAGRAM.sub(lambda found: picture(found[1]), markdown)))


def picture(diagram: str) -> str:
    """Returns a picture of a state diagram: a column for each state, a row for each move, from column to column."""
    moves = _ARROW.findall(diagram)
    states = list(dict.fromkeys(state for first, second, _ in moves for state in (first, second)))
    ends = [140 * min(map(states.index, move[:2])) + 78 + 7 * len(move[2]) for move in moves]
    width, height = max(140 * len(states), *ends), 34 * len(moves) + 60
    parts = []
    for column, state in enumerate(states):
        x, name = 140 * column + 70, "start" if state == "[*]" else state
        parts.append(f'<line x1="{x}" y1="32" x2="{x}" y2="{height}" stroke-opacity=".25"/>')
        parts.append(f'<rect x="{x - 60}" y="4" width="120" height="28" rx="6" fill="none"/>')
        parts.append(f'<text x="{x}" y="23" text-anchor="middle" font-weight="bold">{escape(name)}</text>')
    for row, (first, second, why) in enumerate(moves):
        y, (begin, end) = 34 * row + 74, (140 * states.index(one) + 70 for one in (first, second))
        tip, back = (end - 1, end - 9) if end > begin else (end + 1, end + 9)
        # The words stand at the left end of their arrow, whichever way it points.
        parts.append(f'<text x="{min(begin, end) + 8}" y="{y - 6}">{escape(why)}</text>')
        parts.append(f'<line x1="{begin}" y1="{y}" x2="{tip}" y2="{y}"/><circle cx="{begin}" cy="{y}" r="3"/>')
        parts.append(f'<path d="M{tip} {y}L{back} {y - 4}L{back} {y + 4}Z"/>')
    shown = (
        f'viewBox="0 0 {width} {height}" style="max-width:{width}px;width:100%" stroke="currentColor" '
        'fill="currentColor" font-size="13" role="img"'
    )
    said = escape("; ".join(f"{first} to {second}: {why}" for first, second, why in moves).replace("[*]", "start"))
    style = "<style>svg.states text{stroke:none}</style>"
    return f'<svg class="states" {shown} aria-label="{said}">{style}{"".join(parts)}</svg>'


def _inside(link: "re.Match[str]") -> str:
    """Returns a link to the copy of a file; the text alone for a directory."""
    return f"[{link[1]}]({_copy_of(link[2])})" if (ROOT / link[2]).is_file() else link[1]


def _copy_of(name: str) -> str:
    """Returns the place of a copy. A page of Markdown is shown as text: its own links would lead nowhere."""
    return f"source/{name}.txt" if name.endswith(".md") else f"source/{name}"
