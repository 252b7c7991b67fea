"""Measures how much time the gateway adds to an upstream: sends the same request to the upstream and through the
gateway, in turns.

    uv run python -m bench.gateway [--requests 200]

Both get one request at a time, over connections that stay open. The script prints the medians and their difference, for
the whole answer of a plain request and for the first token of a stream. It also prints the fastest tenth, which a busy
machine disturbs less.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from nextslot import Scheduler
from nextslot.extensions.gateway.gateway_service import GatewayService
from nextslot.extensions.gateway.settings import GatewaySettings, UpstreamSettings
from nextslot.server.app import Options
from nextslot.server.serve import Process

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
CHUNK = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, as a model server: with a list of one model, an answer, or a stream of 20 tokens."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    is_stream = body and json.loads(body).get("stream")
    kind = b"text/event-stream" if is_stream else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if is_stream:
        event = b"data: " + json.dumps(CHUNK).encode() + b"\n\n"
        for _ in range(20):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        return
    content = {"data": [{"id": "m"}], "choices": [{"message": {"content": "x"}}], "usage": {"total_tokens": 2}}
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def seconds(client: httpx2.AsyncClient, is_stream: bool) -> float:
    """Returns how long a plain answer takes, or the first event of a stream."""
    began = time.perf_counter()
    if not is_stream:
        answer = await client.post("/v1/chat/completions", json=BODY)
        assert answer.status_code == 200, answer.text
        return time.perf_counter() - began
    async with client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        taken = time.perf_counter() - began
        async for _ in lines:
            pass
    return taken


async def main(requests: int, data: Path) -> None:
    config = uvicorn.Config(upstream, port=0, log_config=None, lifespan="off")
    model_server = uvicorn.Server(config)
    serving = asyncio.create_task(model_server.serve())
    while not model_server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    alone = f"http://127.0.0.1:{model_server.servers[0].sockets[0].getsockname()[1]}"

    scheduler = Scheduler(f"sqlite:///{data}/nextslot.db", data=data, extensions=["gateway"])
    settings = GatewaySettings(upstreams={"u": UpstreamSettings(base_url=alone)})
    scheduler.extension(GatewayService).configure({"gateway": settings}, data)
    process, ready = Process(scheduler, Options(), "127.0.0.1", 0), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(process.run(ready.set_result))
    through = await ready
    async with httpx2.AsyncClient(base_url=alone) as direct, httpx2.AsyncClient(base_url=through) as gateway:
        for is_stream in (False, True):
            taken: dict[str, list[float]] = {"alone": [], "gateway": []}
            for number in range(requests + 20):
                for name, client in (("alone", direct), ("gateway", gateway)):
                    one = await seconds(client, is_stream)
                    if number >= 20:  # The first requests only warm up the connections.
                        taken[name].append(one * 1000)
            what = "first token of a stream" if is_stream else "plain answer"
            for name, share in (("p50", 50), ("p10", 10)):
                alone_ms, gateway_ms = (statistics.quantiles(values, n=100)[share - 1] for values in taken.values())
                added = gateway_ms - alone_ms
                print(f"{what}, {name}: alone {alone_ms:.2f} ms, gateway {gateway_ms:.2f} ms, added {added:.2f} ms")
    process.stop()
    await running
    model_server.should_exit = True
    await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(wanted.requests, Path(directory)))
