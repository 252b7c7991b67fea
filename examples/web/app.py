"""A web shop with several workers. Its processes only submit; the server of the scheduler runs the jobs.

nextslot serve --data examples/web &
NEXTSLOT_URL=http://127.0.0.1:8000 uvicorn --app-dir examples/web app:app --workers 2 --port 8080
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from nextslot import AsyncSubmitter


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncSubmitter() as submitter:  # the address is in NEXTSLOT_URL, an API key in NEXTSLOT_API_KEY
        app.state.submitter = submitter
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=202)
async def order(number: int, request: Request) -> dict[str, str | int]:
    submitter: AsyncSubmitter = request.app.state.submitter
    # The same order again is the same job, until that has ended.
    job_id = await submitter.submit("pack", {"order": number}, unique_key=f"order-{number}")
    return {"job_id": job_id, "worker": os.getpid()}
