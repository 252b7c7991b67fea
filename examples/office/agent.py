"""A scripted agent: does what the job's params say. A real one would read the description and ask a model.

It gets the job as JSON on its standard input, and says how far it is on its standard output.
"""

import json
import os
import sys
import time
from pathlib import Path

job = json.load(sys.stdin)
params = job["params"]
attempt = int(os.environ["NEXTSLOT_ATTEMPT"])

print(f"{job['role']}: {job['description']} (attempt {attempt}, session {os.environ['NEXTSLOT_SESSION_ID']})")
steps = params.get("steps", 2)
for step in range(steps):
    time.sleep(params.get("seconds", 0.2) / steps)
    print(f"::progress {(step + 1) / steps} step {step + 1} of {steps}", flush=True)

if attempt <= params.get("hangs", 0):
    print("waiting for an answer that never comes", flush=True)
    time.sleep(3600)
if attempt <= params.get("fails", 0):
    sys.exit("the session was lost")
if params.get("conflicts"):
    print("CONFLICT (content): Merge conflict in app.py")
    sys.exit("Automatic merge failed; fix conflicts and then commit the result.")

report = Path(os.environ["NEXTSLOT_ARTIFACTS"], "report.md")
report.write_text(f"# {job['description']}\n\nDone by {job['role']} in attempt {attempt}.\n")
