"""Pages: static files that hold no data, with a policy that lets them run nothing but themselves."""

from functools import cache
from importlib import resources

from fastapi import Request, Response

from ..errors import NotFound
from .routing import open_to_all, router

pages = router("Pages")

_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "txt": "text/plain; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@pages.get("/docs", include_in_schema=False)
@open_to_all
async def show_docs(request: Request) -> Response:
    if not request.app.state.options.has_docs:
        raise NotFound("page", "docs")
    return static("api/static/docs", "index.html")


@pages.get("/docs/{name:path}", include_in_schema=False)
@open_to_all
async def show_docs_file(name: str) -> Response:
    return static("api/static/docs", name)


def static(folder: str, name: str) -> Response:
    found = _files(folder).get(name)
    if found is None:
        raise NotFound("file", name)
    kind = _KINDS.get(name.rpartition(".")[2], "application/octet-stream")
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(found, headers=headers, media_type=kind)


@cache
def _files(folder: str) -> dict[str, bytes]:
    """All there are, by their path: what is not among them cannot be asked for, whatever a name says."""
    root = resources.files("nextslot").joinpath(*folder.split("/"))
    found: dict[str, bytes] = {}
    open_ = [("", root)]
    while open_:
        path, place = open_.pop()
        for one in place.iterdir():
            if one.is_dir():
                open_.append((f"{path}{one.name}/", one))
            else:
                found[path + one.name] = one.read_bytes()
    return found
