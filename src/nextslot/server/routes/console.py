"""The web console: static files that use the public API like every other client."""

from fastapi import Request, Response

from nextslot.server.route_rules import open_to_all
from nextslot.server.routing import router
from nextslot.server.static_files import static

console = router("Console")

FOLDER = "console"


@console.get("/", include_in_schema=False)
@console.get("/console", include_in_schema=False)
@open_to_all
async def redirect_to_console() -> Response:
    # Relative, so that it is right below any path that a proxy puts before it.
    return Response(status_code=307, headers={"Location": "console/"})


@console.get("/console/", include_in_schema=False)
@open_to_all
async def show_console(request: Request) -> Response:
    return static(request, FOLDER, "index.html")


@console.get("/console/{name:path}", include_in_schema=False)
@open_to_all
async def show_console_file(name: str, request: Request) -> Response:
    return static(request, FOLDER, name)
