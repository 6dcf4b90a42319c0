"""A producer without the workers' code: it knows the task's name and its arguments.

Prints::

    mail.send with ('you@example.com',) {'subject': 'Hello'} waits in lane urgent
    mail.send with ('me@example.com',) {} waits in lane urgent
    sent to you@example.com: Hello
    sent to me@example.com: (no subject)
"""

from __future__ import annotations

from laneq import LaneQ

# What a worker has: `laneq worker mail:app`. It tells Redis the lane of its task.
worker = LaneQ(namespace="mail")


@worker.task(name="mail.send", lane="urgent")
def send(to: str, *, subject: str = "(no subject)") -> None:
    print(f"sent to {to}: {subject}")


# What another program has, perhaps in another repository.
producer = worker  # so that the example needs no server; otherwise LaneQ(namespace="mail")


if __name__ == "__main__":
    with worker.testing() as t:
        first = producer.enqueue("mail.send", "you@example.com", subject="Hello")
        later = producer.ref("mail.send").using(delay=60).enqueue("me@example.com")
        t.advance(60)
        for job in (first, later):
            view = job.info()
            print(f"{view.task} with {view.args} {view.kwargs} waits in lane {view.lane}")
        t.run_all()
