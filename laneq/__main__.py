"""``python -m laneq``: the same as the ``laneq`` command."""

from __future__ import annotations

from laneq.cli import main

if __name__ == "__main__":
    main()
