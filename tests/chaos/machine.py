"""A search beyond the seeds: hypothesis decides, step by step, what happens next to one run, and shrinks what it finds."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.chaos.actors import Desk, Simulation
from tests.chaos.invariants import violations
from tests.chaos.replaced import simulated
from tests.chaos.run import WORKS
from tests.chaos.schedule import CODES, OUT_OF_ORDER, PASSING, START, NodeLife, Outage, Schedule

ROLES = st.sampled_from(("desk", "control", "sweeper"))
LIVES = st.builds(
    NodeLife,
    boot=st.sampled_from((15.0, 200.0)),
    work=st.sampled_from((60.0, 300.0, 3000.0)),
    fate=st.sampled_from(("works", "stays_on", "fails", "never_reports", "forges", "zombie")),
)
WORDS = st.one_of(
    st.sampled_from(
        ("lost", "unsent", "empty", "both", "late:60", "late:200", "failed:InternalError", "part:2")
    ),
    st.sampled_from(CODES).map("refuse:{}".format),
    st.sampled_from(CODES).map("raise:{}".format),
)


class Weather(RuleBasedStateMachine):
    """One run. After the last step everything works again, and every invariant has to hold."""

    @initialize(
        minutes=st.sampled_from((8.0, 20.0, 40.0)),
        budget=st.sampled_from((0.0, 0.5)),
        markets=st.sampled_from((("on_demand",), ("spot", "on_demand"), ("spot", "spot"))),
        driver=st.sampled_from(("desk", "control")),
        nodes=st.lists(LIVES, min_size=1, max_size=4).map(tuple),
        shown_after=st.sampled_from((0.0, 30.0)),
        work=st.sampled_from(tuple(WORKS)),
        cluster=st.sampled_from((1, 1, 3)),
    )
    def begin(self, minutes, budget, markets, driver, nodes, shown_after, work, cluster):
        schedule = Schedule(
            minutes=minutes,
            budget_usd=budget,
            markets=markets,
            driver=driver,
            nodes=nodes,
            shown_after=shown_after,
            work=work,
            cluster=cluster if work in ("train", "ranks", "script") else 1,
            one_model=cluster > 1 and work == "ranks",
        )
        self.sim = Simulation(schedule)
        with simulated(self.sim.aws, self.sim.records):
            self.sim.begin()

    @property
    def seconds(self) -> float:
        return (self.sim.aws.now - START).total_seconds()

    @rule(seconds=st.sampled_from((0.3, 1.0, 7.0, 45.0, 130.0, 400.0, 1500.0)))
    def time_passes(self, seconds):
        with simulated(self.sim.aws, self.sim.records):
            self.sim.aws.run_until(self.sim.aws.now + timedelta(seconds=seconds))

    @rule(role=ROLES, after=st.integers(1, 6))
    def a_caller_will_die(self, role, after):
        self.sim.aws.kills.add((role, self.sim.aws.effects.get(role, 0) + after))

    @rule(role=ROLES, after=st.integers(1, 6))
    def an_answer_will_be_lost(self, role, after):
        number = self.sim.aws.effects.get(role, 0) + after
        self.sim.weather(lost=self.sim.schedule.lost | {(role, number)})

    @rule(role=ROLES, after=st.integers(1, 20), code=st.sampled_from(CODES + PASSING))
    def a_request_will_fail(self, role, after, code):
        number = self.sim.aws.requests.get(role, 0) + after
        self.sim.weather(errors={**self.sim.schedule.errors, (role, number): code})

    @rule(after=st.integers(1, 20), seconds=st.sampled_from((5.0, 200.0, 900.0)))
    def the_desk_will_sleep(self, after, seconds):
        number = self.sim.aws.requests.get("desk", 0) + after
        self.sim.weather(stalls={**self.sim.schedule.stalls, ("desk", number): seconds})

    @rule(after=st.integers(1, 3), word=WORDS)
    def a_launch_will_meet(self, after, word):
        self.sim.weather(fleet={**self.sim.schedule.fleet, self.sim.aws.fleet_calls + after: word})

    @rule(
        what=st.sampled_from(OUT_OF_ORDER),
        seconds=st.sampled_from((20.0, 200.0, 1200.0)),
    )
    def something_is_out_of_order(self, what, seconds):
        outage = Outage(what, self.seconds, self.seconds + seconds)
        self.sim.weather(outages=(*self.sim.schedule.outages, outage))

    @rule()
    def another_command_comes(self):
        with simulated(self.sim.aws, self.sim.records):
            Desk(self.sim, begins=False, role="desk2")

    @precondition(lambda self: self.sim.machines)
    @rule(fate=st.sampled_from(("_hang", "_stall", "_die", "_panic", "_noticed", "_taken")))
    def a_machine_ends(self, fate):
        with simulated(self.sim.aws, self.sim.records):
            getattr(list(self.sim.machines.values())[-1], fate)()

    def teardown(self):
        if not hasattr(self, "sim"):
            return
        with simulated(self.sim.aws, self.sim.records):
            healed = max((one.until for one in self.sim.schedule.outages), default=0.0)
            self.sim.ends_at = max(self.sim.ends_at, START + timedelta(seconds=healed + 900))
            self.sim.finish()
        found = violations(self.sim)
        assert not found, "\n".join((*found, *self.sim.aws.log))
