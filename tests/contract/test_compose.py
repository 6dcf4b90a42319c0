"""docker-compose.yml: a queue that forgets nothing, workers that hand back, one number to scale."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES = COMPOSE["services"]
WORKERS = ["reserved", "shared"]


def seconds(text: str) -> float:
    number = re.fullmatch(r"(\d+)s", text)
    assert number, text
    return float(number[1])


def test_redis_keeps_its_data_and_evicts_nothing():
    command = SERVICES["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]
    assert "redis" in COMPOSE["volumes"]


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_every_command_is_in_the_exec_form_so_that_signals_arrive(service):
    assert isinstance(SERVICES[service]["command"], list)


@pytest.mark.parametrize("service", WORKERS)
def test_a_worker_has_more_time_to_stop_than_its_grace(service):
    command = SERVICES[service]["command"]
    assert command[0] == "worker"
    grace = float(command[command.index("--grace") + 1])
    assert seconds(SERVICES[service]["stop_grace_period"]) > grace


def check_of(service: str) -> str:
    kind, line = SERVICES[service]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    return line.replace("$$", "$")


@pytest.mark.parametrize("service", WORKERS)
def test_a_worker_is_healthy_while_it_touches_its_file(service, tmp_path):
    command = SERVICES[service]["command"]
    file = command[command.index("--health-file") + 1]
    assert f" {file})" in check_of(service)
    line = check_of(service).replace(file, str(tmp_path / "well"))

    def status() -> int:
        return subprocess.run(["sh", "-c", line], stderr=subprocess.DEVNULL, check=False).returncode

    assert status() != 0
    (tmp_path / "well").touch()
    assert status() == 0
    os.utime(tmp_path / "well", (1, 1))
    assert status() == 1


def test_the_check_of_the_guide_is_that_of_the_compose_file():
    guide = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert check_of("shared").replace("$", "$$") in guide


def test_reserved_and_shared_workers_are_scaled_by_one_number():
    assert {SERVICES[name]["deploy"]["replicas"] for name in WORKERS} == {"${WORKERS:-1}"}
    assert "--reserve" in SERVICES["reserved"]["command"]
    assert "--reserve" not in SERVICES["shared"]["command"]


def test_the_image_has_all_that_it_copies_and_starts_without_a_shell():
    build = SERVICES["shared"]["build"]
    lines = (ROOT / build["dockerfile"]).read_text("utf-8").splitlines()
    words = [line.split() for line in lines if line.startswith("COPY") and "--from" not in line]
    sources = [source for line in words for source in line[1:-1]]
    allowed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in allowed
    entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
    assert json.loads(entry.removeprefix("ENTRYPOINT")) == ["laneq"]


def test_the_default_app_is_one_that_the_image_has():
    app = SERVICES["shared"]["environment"]["LANEQ_APP"]
    module = re.fullmatch(r"\$\{LANEQ_APP:-([\w.]+):app\}", app)
    assert module, app
    assert (ROOT / f"{module[1].replace('.', '/')}.py").is_file()
