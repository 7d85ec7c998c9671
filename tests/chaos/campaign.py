"""Many schedules, on every core: enumerated crash points, pairs of them, layers switched off, and seeds.

`python -m tests.chaos N` (make chaos) plays N seeded schedules besides all that are enumerated, and prints the table.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from tests.chaos.actors import play
from tests.chaos.invariants import overrun, violations
from tests.chaos.run import WORKS
from tests.chaos.schedule import CODES, FATES, LAYERS, OUT_OF_ORDER, NodeLife, Outage, Schedule, from_seed

CHUNK = 50  # schedules that a process plays at a time
MOST_STALLED = 40  # requests of a role before which it is stalled
SHOWN = 10  # violations that the table prints

FULL_TWICE = dict.fromkeys(range(1, 5), "refuse:InsufficientInstanceCapacity")  # both zones, on two walks
FULL = frozenset({"g5.12xlarge us-east-1a on-demand"})
# What a run meets, besides the deaths of its callers: each is enumerated with every one of them.
SITUATIONS: dict[str, Schedule] = {
    "nothing": Schedule(),
    "control drives": Schedule(driver="control"),
    "first zone full": Schedule(full=FULL),
    "throttled answer": Schedule(fleet={1: "refuse:RequestLimitExceeded"}),
    "throttled call": Schedule(fleet={1: "raise:RequestLimitExceeded"}),
    "lost answer": Schedule(fleet={1: "lost"}),
    "two lost calls": Schedule(fleet={1: "unsent", 2: "unsent"}, minutes=30.0),
    "late instance": Schedule(
        fleet={1: "late:200", 2: "unsent"}, minutes=30.0, nodes=(NodeLife(work=900.0),)
    ),
    "late answer": Schedule(fleet={1: "late:240"}, nodes=(NodeLife(work=600.0),)),
    "lost answer, slow to show": Schedule(fleet={1: "lost"}, shown_after=60.0, nodes=(NodeLife(work=600.0),)),
    "stopped while unclear": Schedule(fleet={1: "late:240"}, stop_at=3.0, nodes=(NodeLife(work=3000.0),)),
    "appears too late": Schedule(fleet={1: "late:1000"}, stop_at=3.0, nodes=(NodeLife(work=3000.0),)),
    "too late, and works unbidden": Schedule(
        fleet={1: "late:400", 2: "unsent"},
        nodes=(NodeLife(fate="forges", boot=15.0), NodeLife(work=900.0)),
        minutes=40.0,
    ),
    "failed call, done": Schedule(fleet={1: "failed:InternalError"}),
    "instance and errors": Schedule(fleet={1: "both"}),
    "refused": Schedule(fleet=dict.fromkeys(range(1, 9), "refuse:UnauthorizedOperation")),
    "stop request": Schedule(stop_at=120.0, nodes=(NodeLife(work=3000.0),)),
    "early stop": Schedule(stop_at=1.0),
    "never reports": Schedule(nodes=(NodeLife(fate="never_reports"),), minutes=12.0),
    "hangs": Schedule(nodes=(NodeLife(fate="hangs", work=3000.0),), minutes=12.0),
    "panics": Schedule(nodes=(NodeLife(fate="panics", work=3000.0),), minutes=12.0),
    "dies": Schedule(nodes=(NodeLife(fate="dies", work=3000.0),), minutes=12.0),
    "fails": Schedule(nodes=(NodeLife(fate="fails"),)),
    "taken back": Schedule(
        markets=("spot", "on_demand"), nodes=(NodeLife(fate="taken", at=180.0), NodeLife())
    ),
    "taken back thrice": Schedule(
        markets=("spot", "spot"),
        nodes=(*(NodeLife(fate="taken_unseen", at=130.0),) * 3, NodeLife()),
        minutes=40.0,
    ),
    "taken back each time": Schedule(
        markets=("spot", "spot"), nodes=(NodeLife(fate="taken_unseen", at=60.0),), minutes=30.0
    ),
    "silent, then well": Schedule(nodes=(NodeLife(fate="hangs", at=150.0), NodeLife()), minutes=30.0),
    "deadline": Schedule(nodes=(NodeLife(work=9000.0),), minutes=8.0),
    "budget": Schedule(nodes=(NodeLife(work=9000.0),), budget_usd=0.5),
    "budget, taken back": Schedule(
        markets=("spot", "on_demand"),
        nodes=(NodeLife(fate="taken_unseen", work=9000.0, at=900.0), NodeLife(work=9000.0)),
        minutes=60.0,
        budget_usd=1.5,
    ),
    "promoted by several": Schedule(promotes=True),
    "stays on": Schedule(nodes=(NodeLife(fate="stays_on"),), minutes=12.0),
    "silent, then a spoilt model": Schedule(
        nodes=(NodeLife(fate="hangs", at=150.0), NodeLife(fate="spoils")), minutes=30.0
    ),
    "no progress": Schedule(nodes=(NodeLife(fate="stalls", at=150.0), NodeLife()), minutes=30.0),
    "late words": Schedule(nodes=(NodeLife(fate="zombie", at=180.0), NodeLife(work=900.0)), minutes=40.0),
    "waits, then has room": Schedule(
        markets=("on_demand",), full=FULL, full_until=400.0, queue_minutes=20.0, poll=60.0
    ),
    "waits in vain": Schedule(markets=("on_demand",), full=FULL, queue_minutes=7.0, poll=60.0),
    "control waits": Schedule(
        markets=("on_demand",), full=FULL, full_until=400.0, queue_minutes=20.0, driver="control"
    ),
    "a script": Schedule(work="script", nodes=(NodeLife(fate="hangs", at=150.0), NodeLife()), minutes=30.0),
    "a prepare run": Schedule(
        work="prepare", driver="control", nodes=(NodeLife(fate="hangs", at=150.0), NodeLife()), minutes=30.0
    ),
    "a score run": Schedule(
        work="score", driver="control", nodes=(NodeLife(fate="hangs", at=150.0), NodeLife()), minutes=30.0
    ),
    "ranks": Schedule(
        work="ranks", markets=("spot", "on_demand"), nodes=(NodeLife(fate="taken", at=150.0), NodeLife())
    ),
    "continues": Schedule(parent="all", nodes=(NodeLife(fate="hangs", at=60.0), NodeLife()), minutes=30.0),
    "continues from checkpoints": Schedule(parent="checkpoints"),
    "detached, then taken back": Schedule(
        detached=True,
        markets=("spot", "on_demand"),
        nodes=(NodeLife(fate="taken_unseen", at=130.0), NodeLife()),
        minutes=30.0,
    ),
    "waits in line": Schedule(queue_minutes=10.0, fleet=FULL_TWICE),
    "left in line": Schedule(queue_minutes=10.0, fleet=FULL_TWICE, detached=True),
    "spoilt model": Schedule(nodes=(NodeLife(fate="spoils"),)),
    "spoilt file": Schedule(work="script", nodes=(NodeLife(fate="spoils"),)),
}
_LONG = (NodeLife(work=600.0),)
# The same for three machines that share the pieces, or train one model; lives are those of the heads.
SEVERAL: dict[str, Schedule] = {
    "three machines": Schedule(cluster=3),
    "three train one model": Schedule(cluster=3, one_model=True, work="ranks"),
    "two of three": Schedule(cluster=3, fleet={1: "part:2"}),
    "two of three, shown late": Schedule(cluster=3, fleet={1: "part:2"}, shown_after=60.0),
    "two of three, twice": Schedule(cluster=3, fleet={1: "part:2", 2: "part:1"}, queue_minutes=10.0),
    "three, lost answer": Schedule(cluster=3, fleet={1: "lost"}, shown_after=5.0),
    "three, late": Schedule(
        cluster=3, fleet={1: "late:200", 2: "unsent"}, minutes=30.0, nodes=(NodeLife(work=900.0),)
    ),
    "three, first zone full": Schedule(cluster=3, full=FULL),
    "three, stopped": Schedule(cluster=3, stop_at=120.0, nodes=(NodeLife(work=3000.0),)),
    "three, budget": Schedule(cluster=3, nodes=(NodeLife(work=9000.0),), budget_usd=1.5),
    "three, a peer dies": Schedule(
        cluster=3, nodes=_LONG, peers=(replace(_LONG[0], fate="dies", at=150.0),), minutes=30.0
    ),
    "three, a peer is taken": Schedule(
        cluster=3, markets=("spot", "spot"), nodes=_LONG, minutes=30.0,
        peers=(replace(_LONG[0], fate="taken_unseen", at=150.0),),
    ),
    "three, the head dies": Schedule(
        cluster=3, nodes=(replace(_LONG[0], fate="hangs", at=150.0), *_LONG), minutes=40.0
    ),
    "one model, a rank dies": Schedule(
        cluster=3, one_model=True, work="ranks", nodes=_LONG, minutes=40.0,
        peers=(replace(_LONG[0], fate="hangs", at=150.0),),
    ),
    "one model, taken": Schedule(
        cluster=3, one_model=True, work="ranks", markets=("spot", "spot"),
        nodes=(NodeLife(fate="taken_unseen", at=150.0), NodeLife()), minutes=30.0,
    ),
    "two of three for one model": Schedule(cluster=3, one_model=True, work="ranks", fleet={1: "part:2"}),
    "three never report": Schedule(cluster=3, nodes=(NodeLife(fate="never_reports"),), minutes=12.0),
    "three, control drives": Schedule(cluster=3, driver="control", fleet={1: "part:2"}),
}  # fmt: skip
RETURNS = ("", "look", "drive")
ROLES = ("desk", "desk2", "control", "sweeper")
Part = Callable[[], Iterable[tuple[str, Schedule]]]  # of a campaign
LOCKS = ("InvalidRequest", "InvalidObjectState")
LOST_BY = {"taken_unseen": "spot", "panics": "on_demand", "dies": "on_demand", "zombie": "on_demand"}


@dataclass
class Table:
    """What a campaign found."""

    schedules: Counter[str] = field(default_factory=Counter)  # by kind
    faults: Counter[str] = field(default_factory=Counter)
    crash_points: int = 0
    violations: list[tuple[Schedule, list[str]]] = field(default_factory=list)
    overruns: dict[str, float] = field(default_factory=dict)  # worst, by kind
    seconds: float = 0.0
    interrupted: bool = False

    def add(self, other: Table) -> None:
        self.schedules.update(other.schedules)
        self.faults.update(other.faults)
        self.crash_points += other.crash_points
        self.violations += other.violations
        for kind, worst in other.overruns.items():
            self.overruns[kind] = max(self.overruns.get(kind, 0.0), worst)

    def text(self) -> str:
        """Return the table as it is printed."""
        lines = [f"{'schedules':<34}{'played':>9}{'worst overrun':>16}"]
        lines += [
            f"{kind:<34}{number:>9,}{self.overruns.get(kind, 0.0):>14.0f} s"
            for kind, number in self.schedules.items()
        ]
        total = sum(self.schedules.values())
        lines += [f"{'all':<34}{total:>9,}{max(self.overruns.values(), default=0.0):>14.0f} s", ""]
        lines += [f"{'faults: ' + kind:<34}{number:>9,}" for kind, number in sorted(self.faults.items())]
        lines += [
            f"{'crash points':<34}{self.crash_points:>9,}",
            f"{'violations':<34}{len(self.violations):>9,}",
        ]
        if self.interrupted:
            lines.append("interrupted: not every schedule was played")
        rate = total / self.seconds if self.seconds else 0.0
        lines.append(f"{'seconds':<34}{self.seconds:>9.0f}    {rate:.0f} schedules a second")
        for schedule, broken in self.violations[:SHOWN]:
            lines += ["", *broken, f"    replay: {schedule}"]
        return "\n".join(lines)


def check(kind: str, schedule: Schedule) -> Table:
    """Play one schedule and check every invariant; an exception of the product is a violation as well."""
    table = Table(schedules=Counter({kind: 1}))
    try:
        sim = play(schedule)
        broken = violations(sim)
        table.faults.update(sim.aws.faults)
        table.crash_points = sim.aws.faults.get("kill", 0)
        table.overruns[kind] = overrun(sim)
    except Exception as error:
        broken = [f"no_actor_fails: {type(error).__name__}: {error}"]
    if broken:
        table.violations.append((schedule, broken))
    return table


def check_all(work: Iterable[tuple[str, Schedule]]) -> Table:
    """Check schedules one after the other."""
    table = Table()
    before = gc.get_threshold()
    gc.set_threshold(
        50_000
    )  # a schedule's objects go with it: the usual looks for cycles take a tenth of the time
    try:
        for kind, schedule in work:
            table.add(check(kind, schedule))
    finally:
        gc.set_threshold(*before)
    return table


def check_part(part: Part) -> Table:
    """Check the schedules of a part, which its process makes itself."""
    return check_all(part())


def campaign(parts: Iterable[Part], *, processes: int = 0) -> Table:
    """Check the schedules of all parts on every core, and print violations as they are found."""
    began, table = time.monotonic(), Table()
    with ProcessPoolExecutor(processes or os.cpu_count() or 1) as pool:
        try:
            for found in pool.map(check_part, parts):
                table.add(found)
                for schedule, broken in found.violations:
                    print("\n".join((*broken, f"    replay: {schedule}")), file=sys.stderr, flush=True)
        except KeyboardInterrupt:  # the table is of what was played
            pool.shutdown(cancel_futures=True)
            table.interrupted = True
    table.seconds = time.monotonic() - began
    return table


def all_parts(seeds: Sequence[int], *, pairs: bool = True) -> Iterator[Part]:
    """Yield the whole campaign: seeds, seeds without layers, and every enumeration by situation."""
    for make, numbers in ((seeded, seeds), (layers_off, seeds[: len(seeds) // 5])):
        for first in range(0, len(numbers), CHUNK):
            yield partial(make, numbers[first : first + CHUNK])
    yield from (every_node_death, every_lock, every_code, every_outage)
    for enumerate_, situation in itertools.product(
        (every_crash, every_layer, every_stall), (*SITUATIONS.values(), *SEVERAL.values())
    ):
        yield partial(enumerate_, (situation,))
    if pairs:
        for situation, returns, role in itertools.product(SITUATIONS.values(), RETURNS[1:], ROLES):
            yield partial(every_pair, (situation,), (returns,), (role,))


def side_effects(schedule: Schedule) -> dict[str, int]:
    """Return how many side effects each role has, if nobody is killed."""
    return dict(play(schedule).aws.effects)


def every_crash(
    situations: Iterable[Schedule] = tuple(SITUATIONS.values()),
) -> Iterator[tuple[str, Schedule]]:
    """Yield each situation with its callers killed at each side effect, and each way in which another comes."""
    for situation in situations:
        for role, most in side_effects(situation).items():
            for number, returns in itertools.product(range(most + 1), RETURNS):
                killed = frozenset({(role, number)})
                yield "every crash point", replace(situation, kills=killed, returns=returns)


def every_pair(
    situations: Iterable[Schedule] = tuple(SITUATIONS.values()),
    returned: Sequence[str] = RETURNS[1:],
    roles: Sequence[str] = ROLES,
) -> Iterator[tuple[str, Schedule]]:
    """Yield each situation with two deaths: of one caller twice, or of two. After the first, another desk drives on or,
    if control is the one to die as well, any command looks.
    """
    for situation in situations:
        for returns in returned:
            alone = replace(situation, returns=returns, returns_after=20.0)
            for role, most in side_effects(alone).items():
                if role not in roles:
                    continue
                for first in range(most + 1):
                    once = replace(alone, kills=frozenset({(role, first)}))
                    for other, more in side_effects(once).items():
                        if (returns == "drive") == (role == other == "desk"):
                            for second in range(first + 1 if other == role else 0, more + 1):
                                yield "every pair", replace(once, kills=once.kills | {(other, second)})


def every_stall(
    situations: Iterable[Schedule] = tuple(SITUATIONS.values()),
) -> Iterator[tuple[str, Schedule]]:
    """Yield each situation with a caller that sleeps in each of its requests, and with each of them on its way for
    long, while the others go on.
    """
    for situation in situations:
        for two_desks in (False, True):
            calm = replace(situation, two_desks=two_desks)
            for role, most in play(calm).aws.requests.items():
                for number in range(1, min(most, MOST_STALLED) + 1):
                    seconds = 40.0 if two_desks or role != "desk" else 900.0
                    yield "every stall", replace(calm, stalls={(role, number): seconds})
                    if two_desks:
                        yield "every late request", replace(calm, delays={(role, number): 20.0})


def every_layer(
    situations: Iterable[Schedule] = tuple(SITUATIONS.values()),
) -> Iterator[tuple[str, Schedule]]:
    """Yield each situation with one layer alone: the desk dies at each side effect, and control is out of order until
    half an hour after the deadline.
    """
    for situation in situations:
        if situation.driver == "control":
            continue
        gone = (Outage("control", 0.0, situation.minutes * 60 + 1800.0),)
        alone = replace(situation, outages=gone)
        for layer in LAYERS[1:]:
            if layer == "L2" and alone.nodes[0].fate == "panics":  # no timer fires in a dead kernel
                continue
            for number in range(side_effects(alone)["desk"] + 1):
                off, killed = frozenset(LAYERS) - {layer}, frozenset({("desk", number)})
                yield f"abandoned, {layer} alone", replace(alone, off=off, kills=killed)


def layers_off(seeds: Iterable[int]) -> Iterator[tuple[str, Schedule]]:
    """Yield seeds with one layer switched off, and with all but one."""
    for seed in seeds:
        layer = LAYERS[seed % len(LAYERS)]
        yield f"without {layer}", from_seed(seed, off=frozenset({layer}))
        yield f"{layer} alone", from_seed(seed, off=frozenset(LAYERS) - {layer})


def every_node_death() -> Iterator[tuple[str, Schedule]]:
    """Yield each kind of work with its machine lost at each of its writes to S3, in each way."""
    for work, (fate, market) in itertools.product(WORKS, LOST_BY.items()):
        calm = Schedule(work=work, markets=(market, "on_demand"), minutes=30.0, nodes=(NodeLife(work=200.0),))
        (machine,) = play(calm).machines.values()
        for number in range(1, machine.writes + 1):
            lives = NodeLife(work=200.0, fate=fate, writes=number), NodeLife(work=200.0)
            yield "every write of a node", replace(calm, nodes=lives)


def every_lock() -> Iterator[tuple[str, Schedule]]:
    """Yield each kind of work with each of its machine's writes made unreadable, of one that ends well and of one that
    is lost after its last write or the one after the lock.
    """
    for work in WORKS:
        calm = Schedule(work=work, markets=("spot", "on_demand"), minutes=30.0, nodes=(NodeLife(),))
        (machine,) = play(calm).machines.values()
        for locked, lock in itertools.product(range(1, machine.writes + 1), LOCKS):
            for writes in sorted({0, locked, locked + 1, machine.writes}):
                fate = "taken_unseen" if writes else "works"
                life = NodeLife(fate=fate, writes=writes, locked=locked, lock=lock)
                yield "every unreadable object", replace(calm, nodes=(life, NodeLife()))


def every_code() -> Iterator[tuple[str, Schedule]]:
    """Yield each error code of AWS as the answer to the first two launches, in each form, for each driver."""
    for code, form, driver in itertools.product(
        CODES, ("refuse", "raise", "failed", "both"), ("desk", "control")
    ):
        if form != "failed" or code.startswith(("Internal", "Service", "Server", "Unavailable")):
            word = (
                f"{form}:{code}"  # `failed` made an instance all the same, as only an error of AWS's own can
            )
            yield "every error code", Schedule(fleet={1: word, 2: word}, driver=driver, minutes=30.0)


def every_outage() -> Iterator[tuple[str, Schedule]]:
    """Yield each service, function and network out of order, from each phase of a run on, shortly and for long."""
    spans = itertools.product((0.0, 3.0, 60.0, 200.0, 290.0), (40.0, 400.0, 2000.0))
    for what, (since, seconds), driver in itertools.product(OUT_OF_ORDER, spans, ("desk", "control")):
        lives = NodeLife(fate="hangs", at=150.0), NodeLife()
        outage = Outage(what, since, since + seconds)
        yield "every outage", Schedule(outages=(outage,), driver=driver, nodes=lives, minutes=30.0)


def all_off(seeds: Iterable[int]) -> Iterator[tuple[str, Schedule]]:
    """Yield each fate with every layer switched off, and nobody else who could end an instance."""
    gone = (Outage("control", 0.0, 20_000.0),)
    for seed in seeds:
        dead = frozenset({("desk", 8 + seed % 5)})
        life = NodeLife(fate=FATES[seed % len(FATES)], work=9000.0)
        yield (
            "all layers off",
            Schedule(seed=seed, off=frozenset(LAYERS), kills=dead, outages=gone, nodes=(life,), minutes=8.0),
        )


def seeded(seeds: Iterable[int]) -> Iterator[tuple[str, Schedule]]:
    """Yield the schedules of seeds."""
    return (("seeds", from_seed(seed)) for seed in seeds)
