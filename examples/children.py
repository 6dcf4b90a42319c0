"""A job that enqueues others: they exist if its outcome was recorded, and not otherwise.

Prints::

    fetched /a
    fetched /b
    fetched /c
    import of 3 pages: succeeded
"""

from __future__ import annotations

from laneq import LaneQ, current_job

app = LaneQ(namespace="children")


@app.task
async def import_site(pages: list[str]) -> int:
    for page in pages:
        # Committed together with this job's outcome. If its worker dies here, the next
        # attempt starts afresh, and no page is fetched twice.
        current_job().enqueue(fetch.using(lane="batch").call(page))
    return len(pages)


@app.task
def fetch(page: str) -> None:
    print(f"fetched {page}")


if __name__ == "__main__":
    with app.testing() as t:
        job = import_site.enqueue(["/a", "/b", "/c"])
        t.run_all()
        print(f"import of {job.result()} pages: {job.state()}")
