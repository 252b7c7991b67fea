"""Submits the work: a page and an API, then their tests and the deployment, in one session. Prints its job's id."""

from nextslot import Client
from nextslot.extensions.offices.client import Offices

with Client() as client:
    jobs = client.extension(Offices).submit(
        "shop",
        [
            {"key": "page", "role": "FE", "description": "Write the text of a page that sells tea."},
            {"key": "order", "role": "BE", "description": "Write down which fields an order of tea has."},
            {
                "role": "QA",
                "description": "Read what the others wrote, and list what to test.",
                "depends_on": ["page", "order"],
                "params": {"version": 7},
            },
        ],
    )
    print(jobs[-1].job_id)
