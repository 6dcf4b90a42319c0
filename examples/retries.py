"""Retries: how often and when, and a job that decides for itself.

Prints::

    attempt 1: the bank is away
    attempt 2: the bank is away
    attempt 3: paid 17
    paid
    not tried again: no such order
"""

from __future__ import annotations

from laneq import JobFailed, LaneQ, Retry, current_job

app = LaneQ(namespace="retries")


class BankIsAway(Exception):
    """It may be back in a while."""


# Five attempts in all, after 2, 4, 8 … seconds, but only for this kind of error.
@app.task(retry=Retry(5, base=2, cap=60, retry_on=BankIsAway))
def pay(order_id: int) -> str:
    attempt = current_job().attempt
    if order_id < 0:
        current_job().give_up("no such order")  # a dead letter at once; does not return
    if attempt < 3:
        print(f"attempt {attempt}: the bank is away")
        raise BankIsAway
    print(f"attempt {attempt}: paid {order_id}")
    return "paid"


if __name__ == "__main__":
    with app.testing() as t:
        good, bad = pay.enqueue(17), pay.enqueue(-1)
        t.run_all(advance=True)  # with the waits between attempts, in no time
        print(good.result())
        try:
            bad.result()
        except JobFailed as error:
            print("not tried again:", error.message)
