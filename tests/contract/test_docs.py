"""docs/lifecycle.md and docs/keys.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from laneq.keys import PERMANENT
from laneq.model import ATTEMPT_ENDS, BALANCE, EVENTS, SIDE_EVENTS, TRANSITIONS, State
from laneq.scripts import load, names
from tests.contract.test_scripts import stage as stage  # noqa: PLC0414  a fixture
from tests.contract.test_scripts import use_everything

DOCS = Path(__file__).resolve().parents[2] / "docs"


def text_of(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def rows_of(text: str, first: str) -> list[list[str]]:
    """Return the rows of every table whose first column has this title."""
    rows: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first:
            inside = True
        elif inside and not set(line) <= set("| -"):
            rows.append(cells)
    return rows


# --- lifecycle.md -----------------------------------------------------------


def moves() -> list[tuple[str, str, str]]:
    rows = rows_of(text_of("lifecycle.md"), "from")
    return [(row[0].strip("`"), row[1].strip("`"), row[2]) for row in rows]


def test_the_moves_are_the_transitions_of_the_model():
    told = {(a, b) for a, b, _ in moves() if a != "new" and b != "gone"}
    assert told == {(a.value, b.value) for a, ends in TRANSITIONS.items() for b in ends}


def test_every_state_but_running_can_begin_or_end_as_told():
    assert {b for a, b, _ in moves() if a == "new"} == {"waiting", "scheduled"}
    assert {a for a, b, _ in moves() if b == "gone"} == {s.value for s in State} - {"running"}


def test_the_diagram_and_the_table_have_the_same_moves():
    arrows = re.findall(r"^\s+(\S+) --> (\S+):", text_of("lifecycle.md"), re.MULTILINE)
    drawn = {
        (a.replace("[*]", "new"), b.replace("[*]", "gone") if a != "[*]" else b) for a, b in arrows
    }
    assert drawn == {(a, b) for a, b, _ in moves()}


def test_each_move_names_scripts_that_there_are():
    for _, _, scripts in moves():
        assert set(scripts.split(", ")) <= set(names())


def test_every_state_is_described():
    told = [row[0].strip("`") for row in rows_of(text_of("lifecycle.md"), "state")]
    assert sorted(told) == sorted(state.value for state in State)


def test_the_balances_are_those_of_the_model():
    text = text_of("lifecycle.md")
    assert f"    enqueued = {' + '.join(BALANCE)}\n" in text
    assert f"    started = {' + '.join(ATTEMPT_ENDS)} + running\n" in text
    for event in (*EVENTS, *SIDE_EVENTS):
        assert re.search(rf"\b{event}\b", text), f"{event} is not explained"


# --- keys.md ----------------------------------------------------------------


def key_rows() -> list[list[str]]:
    return rows_of(text_of("keys.md"), "key")


def test_every_permanent_key_is_told_and_no_other():
    told = [row[0].strip("`") for row in key_rows()]
    mortal = [name for name in told if ":" in name]
    assert sorted(set(told) - set(mortal)) == sorted(PERMANENT)
    words = {"hist", "call", "doorbell", "session", "probe"}
    assert {name.split(":")[0] for name in mortal} == words


def test_the_owner_of_each_key_declares_it():
    words = {"hist:LANE:fN": "fine", "hist:LANE:mN": "coarse"}
    for name, _, _, owner, _ in key_rows():
        key = name.strip("`")
        script = load(owner)
        word = words.get(key, key.split(":")[0])
        assert word in {*script.keys, *script.lane_keys}, f"{owner} does not have {key}"


def test_keys_are_of_the_type_that_is_told(stage):
    types = {row[0].strip("`").split(":")[0]: row[1] for row in key_rows()}
    use_everything(stage)
    stage.put("a")
    stage.worker("ring").claim(listening=stage.lanes.names)
    prefix = stage.keys.prefix
    seen = set()
    for key in stage.client.scan_iter(match=prefix + b"*"):
        word = key[len(prefix) :].decode().split(":")[0]
        seen.add(word)
        assert stage.client.type(key).decode() == types[word], word
    assert len(seen) > 15


@pytest.mark.parametrize("seconds", ["400", "3720", "60"])
def test_times_to_live_are_those_of_the_scripts(seconds):
    shown = {"400": "400 s", "3720": "62 min", "60": "60 s"}[seconds]
    assert any(row[4] == shown for row in key_rows())
    code = " ".join(load(name).plain.decode() for name in ("beat", "claim", "enqueue"))
    assert re.search(rf'("EXPIRE", [^,]+|"EX"), "?{seconds}"?', code)
