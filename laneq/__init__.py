"""laneq: a job queue on Redis with priority lanes."""
