"""A long job that reports how far it is and stops when somebody cancels it.

Prints::

    half: {'done': 2, 'total': 4, 'note': 'page 2'}
    asked to stop after page 3
    the job was cancelled
"""

from __future__ import annotations

from laneq import JobCancelled, LaneQ, current_job

app = LaneQ(namespace="progress")


@app.task(lane="batch")
def print_book(pages: int) -> None:
    job = current_job()
    for page in range(1, pages + 1):
        if job.is_cancelled:  # a function in a thread has to look; a coroutine is cancelled
            print(f"asked to stop after page {page - 1}")
            return
        job.progress(page, pages, f"page {page}")
        look(page)


def look(page: int) -> None:
    """Stand in for somebody who looks at the job, and then cancels it, while it runs."""
    handle = app.job(current_job().id)
    if page == 2:
        print("half:", handle.info().progress)
    if page == 3:
        handle.cancel()


if __name__ == "__main__":
    with app.testing() as t:
        job = print_book.enqueue(4)
        t.run_all()
        try:
            job.result()
        except JobCancelled:
            print("the job was cancelled")
