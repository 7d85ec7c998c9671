"""Places where runs happen: an account, a rehearsal, the caller's own machine.

A place is a value with everything that follows from it: its pace, limits, checks and words. Records and
receipts keep its name. Nothing else asks which place it is: a further one is one more value in PLACES.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Place:
    """One place. The defaults are those of an account."""

    name: str
    title: str = ""  # beside a plan's and a message's first words
    flag: str = ""  # of commands that look at its runs later
    plan_note: str = ""
    receipt_note: str = ""
    no_stack: str = ""  # what to do where there is none; '': create it
    old_stack: str = ""  # what to do where it is another version's; '': update it
    no_retrain: str = (  # what to do where its stack has no such retrain
        "Write times and budgets into the setting `retrains` of Pulumi.<stack>.yaml, and run pulumi up."
    )
    no_down: str = ""  # what to do instead of taking its stack down; '': take it down
    phases: tuple[tuple[str, str], ...] = ()  # own words for a run's phases
    poll_seconds: float = 5.0  # between two looks at a run
    answer_seconds: float = 10.0  # for queries to the account that run at once
    function_seconds: float = 25.0  # for a function's answer: a cold one starts for seconds, then sweeps
    chip: str = ""  # the GPU profile of whatever trains there; '': that of the machine's own GPUs
    boot_seconds: float = 0.0  # before a training, P50; 0: by the type
    after_seconds: float = 30.0  # after it: upload and shutdown; an estimate of 2026-11-20
    has_proxy: bool = True  # its AWS is reached as the environment's proxy settings say
    has_demo: bool = False  # without candles, the demo's are trained
    has_instances: bool = True  # EC2 instances do the work, and their end has to be seen
    asks: bool = True  # before money is spent
    spot_prices: bool = True  # there is a spot market whose prices differ from the list's
    binding: bool = True  # machines that do not fit, and times beyond the hard stop, are refused
    more_disk: str = "Choose a type with local disks, or raise volume_gib and `pulumi up`."
    no_attach: str = ""  # why nobody gets onto its machines; '': they do, where the stack says so
    desk_python: bool = False  # commands run with this environment's Python and packages
    packages: str = "node lock"  # where the agent's packages come from, for the receipt
    image: str = "the image"  # where a command's packages come from; "": the Python that it names
    own_user: bool = True  # a command can have a user of its own: the agent is root on a machine of its own
    stop_seconds: float = 30.0  # of a command, between SIGTERM and SIGKILL; a shutdown leaves 75 s


FREE_SPACE = "Free some space, or set MAYFLY_HOME to a folder on another disk."
ACCOUNT = Place(name="account")
REHEARSAL = Place(
    name="rehearsal",
    title="rehearsal",
    flag=" --rehearse",
    plan_note=(
        "A rehearsal: times and dollars are what AWS would take. Here GPUs are processes on this machine's"
        ' CPU, which take the time of "this desk". Permissions are not checked here; make test does that.'
    ),
    receipt_note=(
        "A rehearsal: an embedded AWS on this machine. Its GPUs are CPU processes, and its dollars are these"
        " CPU seconds at the type's list price, no forecast."
    ),
    no_retrain="Write times and budgets to a file, and run mayfly rehearse --settings FILE (docs/runs.md).",
    no_down="mayfly rehearse --stop ends its AWS.",
    no_stack="A rehearsal has the stack dev alone, and its first launch makes it: mayfly launch --rehearse.",
    old_stack="The next launch with --rehearse brings it up to date: mayfly launch --rehearse --dry-run.",
    poll_seconds=1.0,  # a look takes six requests, and a node reports every three seconds
    answer_seconds=300.0,  # the embedded AWS runs the sweeper on this machine, however busy that is
    function_seconds=300.0,
    chip="cpu",
    boot_seconds=12.0,
    after_seconds=6.0,
    asks=False,
    spot_prices=False,
    more_disk=FREE_SPACE,
    binding=False,  # it shows what happens at the hard stop, and its times are this desk's
    no_attach="its machine is simulated by processes on this one",
    has_proxy=False,
    has_demo=True,
    desk_python=True,
    packages="the desk's .venv",
    image="the desk's .venv",
    own_user=False,
    stop_seconds=5.0,  # of the 10 s that a rehearsal's machine has
)
HERE = Place(
    name="here",
    receipt_note="No instance: it ran on your own machine, which Mayfly neither pays for nor ends.",
    phases=(("boot", "the agent starts"), ("stage", "devices and data"), ("terminate", "ending")),
    poll_seconds=0.5,
    has_instances=False,
    asks=False,
    spot_prices=False,
    more_disk=FREE_SPACE,
    binding=False,
    no_attach="it runs on its caller's own machine",
    desk_python=True,
    packages="the desk's .venv",
    image="",
    own_user=False,
)
PLACES = {place.name: place for place in (ACCOUNT, REHEARSAL, HERE)}


def place_named(name: str) -> Place:
    """Return the place that a record names. Raises ConfigError for one that this version does not know."""
    if name not in PLACES:
        raise ConfigError(f"there is no place {name[:80]!r}", do="Use the Mayfly that wrote the record.")
    return PLACES[name]
