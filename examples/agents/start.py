"""Submits the work: a page and an API, their tests, and a deployment that a person must approve. Prints its id."""

from nextslot import Client
from nextslot.extensions.offices.client import Offices

with Client() as client:
    jobs = client.extension(Offices).submit(
        "shop",
        [
            {"key": "page", "role": "FE", "description": "Write the text of a page that sells tea."},
            {"key": "api", "role": "BE", "description": "Write down which fields an order of tea has."},
            {"key": "tests", "role": "QA", "description": "List what to test.", "depends_on": ["page", "api"]},
        ],
    )
    deploy = client.submit(
        "deploy",
        {"version": 7},
        office_id="shop",
        depends_on=[jobs[-1].job_id],
        await_signal={"name": "release", "question": "May version 7 go live?"},
    )
    print(deploy.job_id)
