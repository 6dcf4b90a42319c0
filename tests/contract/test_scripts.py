"""Script headers are true: keys that are declared, flags, words, and nothing unbounded."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import redis

from laneq import keys as keys_module
from laneq import model
from laneq.calls import checks, jobs, lanes, pool, probe, reserves, stats, workers
from laneq.calls.call import Call
from laneq.calls.lanes import PublishedTask
from laneq.calls.workers import Held, Sample, WorkerInfo
from laneq.codec import encode_value
from laneq.keys import PERMANENT, keys_of
from laneq.options import Lane
from laneq.scripts import Script, build, load, lua_folder, names
from tests.stage import SECOND, START_US, Stage, new

SOURCES = {
    **{path.stem: path for path in lua_folder().glob("*.lua")},
    **{f"lib/{path.stem}": path for path in (lua_folder() / "lib").glob("*.lua")},
}
HEADER_WORDS = ("FLAGS", "KEYS", "ARGV", "EACH", "RETURNS", "ERRORS", "COST", "KEEPS")

#: Key words of headers that have a time to live, and which attribute of Keys makes them.
MORTAL = {
    "call": "call", "doorbell": "doorbell", "fine": "fine", "coarse": "coarse",
    "slice": "fine", "session": None, "before": None, "probe": "probe",
}  # fmt: skip

#: Words that stand for whatever key the caller names.
ANY_KEY = {"place"}


def code_of(name: str) -> str:
    """Return a source without its comments."""
    lines = SOURCES[name].read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))


def header_of(name: str) -> list[str]:
    lines = SOURCES[name].read_text("utf-8").splitlines()
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))]


# --- headers ----------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_a_header_opens_with_the_scripts_name_and_what_it_does(name):
    assert re.match(rf"^-- {name}: [a-z].*\.$", header_of(name)[0])


@pytest.mark.parametrize("name", names())
def test_a_header_says_what_is_returned_and_what_it_costs(name):
    words = [m[1] for line in header_of(name) if (m := re.match(r"^-- ([A-Z]{4,})  *\S", line))]
    assert set(words) <= set(HEADER_WORDS)
    assert {"KEYS", "RETURNS", "COST"} <= set(words)
    order = [HEADER_WORDS.index(word) for word in words]
    assert order == sorted(order)


@pytest.mark.parametrize("name", names())
def test_every_key_word_is_a_key_that_laneq_keys_names(name):
    script = load(name)
    for word in script.keys:
        known = hasattr(keys_of("x"), word) or word in MORTAL or word in ANY_KEY
        assert known, f"{name}: what is the key {word}?"
    for word in script.lane_keys:
        known = word in PERMANENT or word in MORTAL or word in ANY_KEY
        assert known, f"{name}: what is the key {word}*?"


@pytest.mark.parametrize("name", names())
def test_flags_say_what_a_script_does(name):
    # The clock is kept by those scripts that say so.
    parts = parts_of(name) - {"lib/clock"}
    script, code = load(name), "\n".join(code_of(part) for part in parts)
    assert not ("keep_clock()" in code and "no-writes" in script.flags)
    writes = re.findall(
        r'"(HSET|HSETNX|HDEL|HINCRBY|ZADD|ZREM|SET|DEL|LPUSH|RPUSH|LTRIM|EXPIRE|PUBLISH)"', code
    )
    assert (not writes) == ("no-writes" in script.flags)
    # What fills the system is refused when memory is full; all that empties it is not.
    assert ("allow-oom" in script.flags) == (
        bool(writes) and name not in {"enqueue", "revive", "progress"}
    )


def parts_of(name: str, seen: set[str] | None = None) -> set[str]:
    """Return a script and every fragment that it includes."""
    found = seen if seen is not None else set()
    found.add(name)
    source = SOURCES[name].read_text("utf-8")
    for part in re.findall(r"^\s*-- @include (\w+)", source, re.MULTILINE):
        if f"lib/{part}" not in found:
            parts_of(f"lib/{part}", found)
    return found


@pytest.mark.parametrize("name", names())
def test_every_key_and_argument_of_a_header_is_used(name):
    script, code = load(name), "\n".join(code_of(part) for part in parts_of(name))
    for word in (*script.keys, *script.lane_keys):
        assert re.search(rf"\b{word}_key\b", code), f"{name}: the key {word} is not used"
    for word in script.args:
        assert re.search(rf"\b{word}\b", code), f"{name}: the argument {word} is not used"
    for group in script.groups:
        for word in group.fields:
            # Of a group of one field, the i-th is at ARGV[group_at + i].
            if len(group.fields) == 1 and re.search(rf"ARGV\[{group.name}_at \+ \w+\]", code):
                continue
            field = f"{group.name}_{word}".upper()
            assert re.search(rf"\b{field}\b", code), f"{name}: {field} is not used"


def test_every_fragment_is_included_by_some_script():
    used = set().union(*(parts_of(name) for name in names()))
    assert set(SOURCES) - used == set()


def test_a_fragment_is_spliced_once(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.lua").write_text("-- @include b\nlocal a = b\n")
    (tmp_path / "lib" / "b.lua").write_text("local b = 1\n")
    (tmp_path / "x.lua").write_text(
        "-- x: try.\n-- FLAGS allow-oom no-writes\n-- KEYS one two* | three*\n-- KEYS four\n"
        "-- ARGV n:int text\n-- EACH job lane:int id\n-- @include a\n  -- @include b\nreturn a\n"
    )
    script = build(tmp_path, "x")
    assert script.plain.count(b"local b = 1") == 1
    assert script.text.startswith(b"#!lua flags=allow-oom,no-writes\n")
    assert (script.keys, script.lane_keys, script.args) == (
        ("one", "four"), ("two", "three"), ("n", "text"),
    )  # fmt: skip
    assert script.bind_args({"n": 1, "text": "x"}, job=[(1, "a"), (2, "b")]) == (
        1, "x", 2, 1, "a", 2, "b",
    )  # fmt: skip
    with pytest.raises(TypeError, match="job takes"):
        script.bind_args({"n": 1, "text": "x"}, job=[(1,)])
    with pytest.raises(TypeError, match="no group jobs"):
        script.bind_args({"n": 1, "text": "x"}, jobs=[])


def test_an_indented_fragment_is_spliced_once_in_its_block(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.lua").write_text("-- @include b\nlocal a = b\n")
    (tmp_path / "lib" / "b.lua").write_text("local b = 1\n")
    (tmp_path / "lib" / "c.lua").write_text("-- @include d\nlocal c = d\n")
    (tmp_path / "lib" / "d.lua").write_text("local d = 1\n")
    (tmp_path / "x.lua").write_text(
        "-- x: try.\n-- @include d\nlocal function one()\n  -- @include a\n  -- @include b\n"
        "  -- @include c\nend\nif d then\n  -- @include a\nend\nreturn one\n"
    )
    lines = build(tmp_path, "x").plain.decode().split("\n")
    assert [line for line in lines if line.startswith("local")] == [
        "local d = 1", "local function one()", "local b = 1", "local a = b", "local c = d",
        "local b = 1", "local a = b",
    ]  # fmt: skip


# --- what sources may not do ------------------------------------------------


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_key_is_never_made_out_of_data(name):
    for command, key in re.findall(r'redis\.call\(\s*"(\w+)"(?:,\s*([^,)]*))?', code_of(name)):
        if command in {"TIME", "PUBLISH"}:
            continue
        # A bound key, a bound key of a lane, or a local or parameter that holds one.
        assert re.fullmatch(r"\w+_key(\(.*)?|key|place|unpack\(\w+_keys\)*", key.strip()), (
            f"{command} {key}"
        )


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_nothing_is_read_whole_that_may_be_large(name):
    code = code_of(name)
    commands = set(re.findall(r'redis\.call\(\s*"(\w+)"', code))
    if name == "check":
        # By cursor, a stated number of entries at a time.
        assert code.count("redis.call(scan, ") == 1
        assert 'redis.call(scan, key, cursor, "COUNT", int(step))' in code
    forbidden = {"KEYS", "SCAN", "SMEMBERS", "HKEYS", "HVALS", "LREM", "SORT", "HSCAN", "ZSCAN"}
    assert commands & forbidden == set()
    for key in re.findall(r'"HGETALL",\s*([\w]+)', code):
        assert key in {
            "lanes_key", "overrides_key", "counts_key", "task_counts_key",
            "slice_key", "fine_key", "before_key", "coarse_key",
            "sizing_key", "fleet_key",  # a field a lane, a line a live worker
        }  # fmt: skip
    for found in re.findall(r'"Z(?:REV)?RANGE",([^)]*)', code):
        assert "-1" not in found.replace("- 1", "")
    for found in re.findall(r'"ZRANGEBYSCORE",(.*)', code):
        assert '"LIMIT"' in found
    assert "ZREMRANGEBYSCORE" not in code


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_an_instant_is_never_put_into_text_without_int(name):
    # `..` and tostring keep 14 digits, and a microsecond instant has 16.
    code = code_of(name)
    assert "tostring" not in code
    instants = r"\b(now|tick|score|due|deadline|since|started)\b"
    assert not re.findall(rf"\.\.\s*{instants}\s*(\.\.|$)", code, re.MULTILINE)


def test_the_probe_tries_every_command_that_work_is_made_of():
    work = load("enqueue").plain + load("claim").plain
    needed = set(re.findall(rb'redis\.call\(\s*"(\w+)"', work))
    tried = set(re.findall(rb'try\("(\w+)"', load("probe").plain))
    assert len(needed) > 20
    assert needed <= tried


def event_lists(name: str) -> list[tuple[str, ...]]:
    """Return the tables of a source that are lists of events."""
    lists = [
        tuple(re.findall(r'"(\w+)"', inside))
        for inside in re.findall(r'\{([ \w",\n]+)\}', code_of(name))
    ]
    known = {*model.EVENTS, *model.SIDE_EVENTS}
    return [events for events in lists if events and known.issuperset(events)]


def test_counts_that_must_add_up_are_the_same_in_lua_and_python():
    job_ends = [event for event in model.BALANCE if event in model.EVENTS]
    assert event_lists("lib/parking") == [model.ATTEMPT_ENDS]
    assert event_lists("mend") == [("enqueued", *job_ends), ("started", *model.ATTEMPT_ENDS)]


def test_states_and_events_have_one_spelling_in_lua_and_python():
    code = "\n".join(code_of(name) for name in SOURCES)
    states = set(re.findall(r'\bfinish\(i, id, "(\w+)"', code))
    states |= set(re.findall(r'\bkind == "(\w+)"', code)) - {"retried", "handed_back", "snoozed"}
    places = set(re.findall(r'\bplace(?:, lane, score)? = "(\w+)"', code)) - {"unknown", "ended"}
    every = {state.value for state in model.State}
    assert states <= every
    assert places <= every
    assert states | places == every
    events = set(re.findall(r'\bbump\(i, [^"\n]*"(\w+)", [#\w]', code))
    events |= {state.value for state in model.FINAL}  # finish counts the state
    assert events == set(model.EVENTS) | set(model.SIDE_EVENTS)


# --- declared keys, under MONITOR -------------------------------------------


@pytest.fixture
def stage(raw: redis.Redis, namespace: str) -> Stage:
    stage = Stage(raw, namespace, is_fake=False)
    stage.set_clock(START_US)
    return stage


def use_everything(stage: Stage) -> Counter[str]:
    """Run every script, along most of its branches."""
    ran: Counter[str] = Counter()
    ask = stage.ask

    def counted(call: Call[Any], **options: Any) -> Any:
        ran[call.script.name] += 1
        return ask(call, **options)

    stage.ask = counted  # type: ignore[method-assign]
    keys = stage.keys
    stage.publish()
    stage.set_lane("batch", {"dead_max": 1})
    stage.put(*"abcdefgh")
    stage.put("later", when="+5000000", boost_us=3)
    stage.put("boosted", boost_us=SECOND, lane="urgent")
    stage.put("old", expires_us=1, lane="urgent")
    stage.enqueue(new("a"))
    stage.forward(SECOND)
    worker = stage.worker(slots=30, reserve={"critical": 2})
    worker.claim(listening=["batch", "critical"])
    fence = worker.held["a"].fence
    info = WorkerInfo("n", "h", 1, 30, {}, ["normal"], ["t"])
    stage.run(workers.register(keys, "w", info))
    stage.run(jobs.report_progress(keys, "a", fence=fence, value=encode_value(1)))
    stage.run(
        workers.beat(
            keys, "w", info, now_us=stage.now(), lanes=stage.lanes.names,
            leases=[Held("normal", "a", fence, SECOND)], samples=[Sample("normal", "w1", 1)],
        )
    )  # fmt: skip
    stage.run(jobs.until_ended(keys, "a", timeout_s=None).call)
    stage.cancel("b")
    ends = [
        worker.ended("a", number=SECOND, children=[new("child"), new("child2", when="+9")]),
        worker.ended("b"),
        worker.ended("c", "dead", body=b"!no"),
        worker.ended("d", "retried", number=5, body=b"!no"),
        worker.ended("e", "handed_back"),
        worker.ended("f", "snoozed", number=5),
    ]
    worker.claim(free=0, outcomes=ends, is_look=True)
    worker.claim(free=0, outcomes=[ends[0]])
    stage.run(worker.call(free=0, outcomes=[ends[0]], is_repeat=True))
    stage.forward(60 * SECOND)
    stage.client.hdel(keys.jobs, "child")
    other = stage.worker("v", slots=30)
    other.claim(is_look=True)
    stage.forward(60 * SECOND)
    stage.worker("x").claim(is_look=True)
    stage.run(jobs.look(keys, ["a", "c", "ghost"], lanes=stage.lanes.names))
    stage.run(jobs.page(keys, stage.key("dead", "normal"), offset=0, limit=5))
    stage.revive("c", "ghost")
    stage.cancel("c")
    stage.put("p", "q")
    stage.run(jobs.until_ended(keys, "p", timeout_s=None).call)
    stage.run(lanes.purge(keys, "normal"))
    stage.run(jobs.purge_dead(keys, lanes=stage.lanes.names))
    stage.run(stats.depths(keys, stage.lanes.names))
    stage.run(stats.spread(keys, "normal", now_us=stage.now(), window_s=60))
    stage.run(stats.task_counts(keys))
    stage.run(workers.list_workers(keys))
    stage.run(pool.look_at_pool(keys, "w", stage.lanes.names, now_us=stage.now()))
    for goodbye in (workers.pass_on(keys, stage.lanes.names), workers.leave(keys, "w")):
        stage.run(goodbye)
    check_and_mend(stage)
    limit_and_size(stage)
    return ran


def limit_and_size(stage: Stage) -> None:
    """Use lanes with every limit: claims, enqueues and the sizing of reserves."""
    keys = stage.keys
    stage.publish(
        Lane("urgent", priority=1000, reserve="auto"),
        Lane("normal", priority=100, max_running=1, max_depth=50),
        Lane("batch", priority=10, rate="2/s", fair_by="x", max_depth=50),
    )
    measured = stage.run(
        reserves.take_duty(keys, "y", stage.lanes.names, now_us=stage.now(), ttl_us=60 * SECOND)
    )
    made = {"urgent": {"value": 2}}
    assert stage.run(reserves.decide(keys, "y", term=measured.term or 0, decisions=made))
    narrow = PublishedTask("normal", 3, 0, SECOND, SECOND, max_running=1)
    stage.publish(Lane("urgent", priority=1000, reserve="auto"), tasks={"narrow": narrow})
    stage.enqueue(*(new(f"narrow{n}", lane="batch", task="narrow") for n in range(3)))
    for n in range(6):
        stage.put(f"n{n}", f"x{n}", lane="normal")
        stage.enqueue(new(f"f{n}", lane="batch", fair_key=f"k{n % 2}"))
    stage.put("due", lane="batch", when="+1", fair_key="k1")
    stage.forward(SECOND)
    one, two = stage.worker("y", slots=4), stage.worker("z", slots=2)
    one.claim()
    two.claim(listening=["urgent", "normal", "batch"])
    stage.put("u", lane="urgent")
    one.claim(outcomes=[one.ended(job_id) for job_id in list(one.held)])
    stage.run(workers.register(keys, "z", WorkerInfo("n", "h", 1, 2, {}, [], [])))
    stage.forward(60 * SECOND)
    one.claim(is_look=True)
    stage.enqueue(*(new(f"slim{n}", lane="urgent", task="narrow") for n in range(3)))
    stage.worker("p", slots=4).claim()
    asked = [stage.run(jobs.why(keys, f"slim{n}", lanes=stage.lanes.names)) for n in range(3)]
    assert {place.place for place in asked} == {"running", "scheduled"}
    assert any(place.is_parked for place in asked)
    assert stage.run(jobs.why(keys, "a", lanes=stage.lanes.names)).place == "none"
    stage.run(workers.leave(keys, "y"))
    stage.run(lanes.purge(keys, "batch"))


def check_and_mend(stage: Stage) -> None:
    keys = stage.keys
    assert stage.run(probe.try_commands(keys, "look")) == []
    stage.client.zadd(keys.beats, {"ghost": 1})
    stage.client.hset(keys.jobs, "ghost", "t\n")
    stage.client.delete(stage.key("leases", "batch"))
    stage.run(checks.books(keys, stage.lanes))
    place = checks.START
    while place.source:
        found = stage.run(checks.check(keys, stage.lanes, place, wanted=["t"]))
        assert found is not None
        place = found.next
    stage.run(checks.lives([keys.jobs, keys.state]))
    mended = stage.run(checks.mend(keys, stage.lanes, ["ghost", "later"]))
    assert mended is not None
    assert [repair.id for repair in mended.done] == ["ghost"]
    tidied = stage.run(checks.tidy(keys, stage.lanes, workers=["ghost"], watchers=["p"]))
    assert tidied is not None
    assert "ghost" in {repair.id for repair in tidied.done}


def monitored(raw: redis.Redis, stage: Stage) -> tuple[list[tuple[bool, list[str]]], Counter[str]]:
    """Return what MONITOR shows: whether a script did it, and the words of the command."""
    connection = raw.connection_pool.make_connection()
    connection.send_command("MONITOR")
    assert connection.read_response() == b"OK"
    ran = use_everything(stage)
    raw.echo("the end")
    seen = []
    while True:
        line = connection.read_response().decode()
        words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
        if words == ["ECHO", "the end"]:
            break
        seen.append((" lua] " in line[:60], words))
    connection.disconnect()
    return seen, ran


def keys_in(raw: Any, words: list[str]) -> list[str]:
    if words[0].upper() in {"TIME", "PUBLISH"}:
        return []
    return [key if isinstance(key, str) else key.decode() for key in raw.command_getkeys(*words)]


def test_every_key_that_a_script_touches_is_declared_and_bears_the_hash_tag(raw, stage):
    seen, ran = monitored(raw, stage)
    assert set(ran) == set(names()), "a script that this scenario leaves out"
    prefix = stage.keys.prefix.decode()
    declared: list[str] = []
    touched = 0
    for by_script, words in seen:
        if not by_script:
            if words[0].upper() == "EVAL":
                declared = words[3 : 3 + int(words[2])]
                assert all(key.startswith(prefix) for key in declared)
            continue
        for key in keys_in(raw, words):
            touched += 1
            assert key in declared, f"{words[:3]} is not among {declared}"
        if words[0].upper() == "PUBLISH":
            assert words[1].startswith(prefix)
    assert touched > 300


def test_no_script_sends_a_command_that_reads_without_bound(raw, stage):
    seen, _ = monitored(raw, stage)
    commands = {words[0].upper() for by_script, words in seen if by_script}
    assert commands & {"KEYS", "SCAN", "LREM", "FLUSHDB", "SORT"} == set()


def test_all_keys_of_a_namespace_have_one_slot(raw, stage):
    use_everything(stage)
    found = list(raw.scan_iter(match=stage.keys.prefix + b"*"))
    assert len(found) > 15
    tag = stage.keys.prefix[stage.keys.prefix.index(b"{") + 1 : stage.keys.prefix.index(b"}")]
    assert all(key.startswith(b"{" + tag + b"}:") for key in found)


# --- keys.py ----------------------------------------------------------------


def test_every_key_of_keys_begins_with_the_hash_tag():
    keys = keys_of("shop")
    made = [getattr(keys, word) for word in keys.__slots__ if word not in {"namespace", "prefix"}]
    made += [keys.of_lane(word, "a") for word in PERMANENT]
    made += [keys.fine("a", 1), keys.coarse("a", 1), keys.call("w"), keys.doorbell("w")]
    made += [keys.probe("l")]
    made += [keys.ended_channel("id"), keys.control_channel("w")]
    assert all(key.startswith(b"{laneq:shop}:") for key in made)
    assert len(set(made)) == len(made)


def test_permanent_keys_are_those_of_headers_and_no_others():
    in_headers: set[str] = set()
    for name in names():
        script: Script = load(name)
        in_headers |= {*script.keys, *script.lane_keys}
    assert in_headers - set(MORTAL) - ANY_KEY == set(PERMANENT)


@pytest.mark.parametrize("word", sorted(w for w in MORTAL if MORTAL[w]))
def test_keys_of_a_worker_or_a_time_have_a_maker(word):
    assert callable(getattr(keys_module.Keys, str(MORTAL[word])))
