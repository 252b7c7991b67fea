"""What mkdocs calls while it builds the site: links of docs/ to other files of the repository lead to copies."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^```(\w+) [\w-]+$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the files to which pages link, as they are."""
    linked = {found[2] for one in files.documentation_pages() for found in _OUTSIDE.finditer(one.content_string)}
    for name in sorted(linked):
        if (ROOT / name).is_file():
            files.append(File.generated(config, _copy_of(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    # Words after the language are for tests; mkdocs would take the block for text.
    return _OUTSIDE.sub(_inside, _FENCE.sub(r"```\1", markdown))


def _inside(link: "re.Match[str]") -> str:
    """Returns a link to the copy of a file; the text alone for a directory."""
    return f"[{link[1]}]({_copy_of(link[2])})" if (ROOT / link[2]).is_file() else link[1]


def _copy_of(name: str) -> str:
    """Returns the place of a copy. A page of Markdown is shown as text: its own links would lead nowhere."""
    return f"source/{name}.txt" if name.endswith(".md") else f"source/{name}"
