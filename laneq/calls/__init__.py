"""What to ask Redis and how to read the answer, without I/O: one file per noun."""
