"""Serves static files, with a content security policy that lets a page run only our own scripts."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastapi import Request, Response

from nextslot.errors import NotFound

from .route_rules import open_to_all
from .routing import router

pages = router("Pages")

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "txt": "text/plain; charset=utf-8",
}
# The API documentation's page sets styles in its elements; our pages do not.
LOOSE_STYLES = "style-src 'self' 'unsafe-inline'"
STRICT_STYLES = "style-src 'self'"
_POLICY = (
    "default-src 'none'; script-src 'self'; {styles}; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    zipped: bytes
    tag: str


@pages.get("/docs", include_in_schema=False)
@open_to_all
async def show_docs(request: Request) -> Response:
    if not request.app.state.options.has_docs:
        raise NotFound("page", "docs")
    return static(request, "server/static/docs", "index.html", LOOSE_STYLES)


@pages.get("/docs/{name:path}", include_in_schema=False)
@open_to_all
async def show_docs_file(name: str, request: Request) -> Response:
    return static(request, "server/static/docs", name, LOOSE_STYLES)


def static(request: Request, folder: str, name: str, styles: str = STRICT_STYLES) -> Response:
    """Answers a file, compressed if the browser supports that; answers 304 if the browser has it already."""
    found = _files(folder).get(name)
    if found is None:
        raise NotFound("file", name)
    headers = {
        "Content-Security-Policy": _POLICY.format(styles=styles),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
        "ETag": found.tag,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    kind = _KINDS.get(name.rpartition(".")[2], "application/octet-stream")
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.zipped, headers={**headers, "Content-Encoding": "gzip"}, media_type=kind)
    return Response(found.content, headers=headers, media_type=kind)


@cache
def _files(folder: str) -> dict[str, File]:
    """Reads all files of a folder, by path. No other file can be requested, whatever its name says."""
    root = resources.files("nextslot").joinpath(*folder.split("/"))
    found: dict[str, File] = {}
    open_ = [("", root)]
    while open_:
        path, place = open_.pop()
        for one in place.iterdir():
            if one.is_dir():
                open_.append((f"{path}{one.name}/", one))
            else:
                found[path + one.name] = _file(one.read_bytes())
    return found


def _file(content: bytes) -> File:
    tag = hashlib.sha256(content).hexdigest()[:32]
    return File(content, gzip.compress(content, mtime=0), f'W/"{tag}"')
