"""What the rules know: promises of servers, beliefs of holders, waiting callers, and violations.

Each rule counts how often it was exercised: a rule that never had a chance has shown nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.handoffs import Handoffs
from tests.simulation.register import Register
from wheel_lock.engine.engine import Engine
from wheel_lock.lease import Lease
from wheel_lock.observe import LostEvent
from wheel_lock.rows import Rows

if TYPE_CHECKING:
    from tests.simulation.processes import Process

SAME_S = 1e-6  # two readings of one moment
MAJORITY = "a majority"  # replaces the name of a server
_RECOVERY_S = 2.0
_LONGEST_S = 4.0  # limit of the effects of a trouble: a timeout and more

RULES = {
    "S1": "a belief lies within what the server said",
    "S2": "no two beliefs exclude one another",
    "S3": "fences grow",
    "guarded": "no write of an older fence comes behind that of a newer one, and no other write is refused",
    "S4": "a command changes its own token only",
    "S5": "a loss is reported once, by the deadline, and is final",
    "S6": "nothing is sent for a token after its release returned",
    "L1": "when faults end every name is free within two timeouts",
    "permits": "no more permits are held than there are",
    "readers": "a writer holds a lock alone",
    "fair": "the first waiter of a fair lock is granted first",
    "order": "waiters of one process get a lock in the order in which they came",
    "wake-up": "a released lock is granted to a waiter at once, when nothing is wrong",
    "expiry": "no key is without an expiry",
    "replaced": "no promise counts of a master that Sentinels have reported as replaced to the holder",
    "copies": "a grant that waits for replicas is at so many of them",
    "rounds": "a caller that waits for a majority retries within one and a half fallback intervals",
    "absent server": "a caller with a time limit waits up to it for a server that was never there",
    "limits": "an acquire ends by its caller's limit, and a lease by its own",
    "orphan": "a grant without a waiting caller is released at once, when nothing is wrong",
    "handoff": "an adopted lease has the hold limit of the exported one, whatever wall clocks show",
    "leader": "there is one leader at a time",
    "fork": "a forked child holds nothing, and sends nothing for what its parent holds",
    "crash": "the locks of a killed process are released, and none of its exported ones, nor of its parent",
    "kept": "no lease is lost without a cause",
    "told": "a holder whose server has lost the lock, and the connection, hears of it when that is there again",
    "released": "a release that returns has released",
    "left": "nothing is left in keys, requests and registries",
    "hot loop": "no thread turns for nothing",
    "internal failure": "no code of the library fails",
    "callers": "no public method raises what it does not promise",
}
ALWAYS = ("hot loop", "internal failure", "callers")  # rules that every moment exercises


@dataclass
class Span:
    """The server says that a key belongs to a token.

    Attributes:
        promised: Until when it said so, which is later than ``end`` if a stranger took the key away.
        place: Who says so: the store, or a server that no longer speaks for it.
        tampered: Whether a stranger has changed it, or a failover.
        copies: The servers that have got it as replicas.
        released: Whether it ended by a command about the token.
        process: Whose command made it, if that came in time.
        host: The server that has granted it.
        clock_us: What the clock of that server showed then, in microseconds.
    """

    start: float
    end: float
    promised: float
    place: str = ""
    tampered: bool = False
    copies: set[str] = field(default_factory=set)
    released: bool = False
    process: Process | None = None
    host: str = ""
    clock_us: int = 0


@dataclass(eq=False)
class Belief:
    """A holder counts a lease as held, from its grant on."""

    lease: Lease
    process: Process
    name: bytes
    token: bytes
    kind: str
    start: float
    until: float = 0.0
    deadline: float = 0.0  # the same, by the clock of its process
    open: bool = True
    host: str = ""
    let_go: bool = False


@dataclass(eq=False)
class Wait:
    """A caller waits to be woken, or ``polls``.

    Those of one ``queue``, unless that is None, are granted the lock in their order.
    """

    process: Process
    name: bytes
    since: float
    queue: Any
    polls: bool


@dataclass
class Free:
    """A lock was released, or has expired.

    Attributes:
        since: When that was.
        released: Whether it was released, so that waiters are woken.
        unaware: The processes that still count it as held, because it was released by force: each finds out with its next
            renewal, and its own waiters with it.
    """

    since: float
    released: bool
    unaware: set[Process]


@dataclass(eq=False)
class Holding:
    """What one acquire of a caller got, and the reports of losses to it, by name.

    Attributes:
        interrupted: Whether the acquire, or what came behind it, was interrupted.
        stops: How often its process had been stopped before.
    """

    process: Process
    reports: Counter[str | bytes] = field(default_factory=Counter)
    reported_at: dict[str | bytes, float] = field(default_factory=dict)
    got: set[str | bytes] = field(default_factory=set)
    interrupted: bool = False
    stops: int = 0

    def on_lost(self, event: LostEvent) -> None:
        self.process.world.rules.loss_reported(self, event)


class Record:
    """What is known."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.violations: list[tuple[float, str, str]] = []
        self.exercised: Counter[str] = Counter(dict.fromkeys(RULES, 0))
        self.failure: BaseException | None = None
        self._spans: dict[tuple[str, bytes, bytes], list[Span]] = defaultdict(list)
        self._known: dict[tuple[str, bytes], dict[bytes, Span]] = defaultdict(dict)
        self._queues: dict[tuple[str, bytes], dict[bytes, float]] = {}
        self._lapsed: set[bytes] = set()  # waiters that have lost their place, or have it again
        self._active: dict[Process, dict[Lease, Belief]] = defaultdict(dict)
        self._ended: dict[Process, list[Belief]] = defaultdict(list)
        self._beliefs: list[Belief] = []
        self._begun: set[Lease] = set()
        self._shadows: dict[Process, dict[Rows, list[Lease]]] = defaultdict(dict)  # of leases that are not made yet
        self._believed: set[bytes] = set()
        self._holdings: list[tuple[Lease, Holding, dict[str, Any]]] = []
        self._with_losses: dict[Holding, None] = {}
        self._released: dict[bytes, float] = {}
        self._of_majority: set[bytes] = set()
        self._handed_over: set[bytes] = set()
        self._unconfirmed: set[bytes] = set()
        self._named: dict[Engine, tuple[tuple[Any, ...], float]] = {}
        self._left_a_master: set[Engine] = set()
        self._free: dict[tuple[str, bytes], Free] = {}  # the locks, or permits, that were released or have expired
        self._sender: Process | None = None  # of the command that a server executes
        self._waiters: dict[Wait, None] = {}  # in the order in which they came
        self.trouble_until = 0.0  # from then on nothing is wrong
        self.hindered_until = 0.0  # from then on what is to be released can be
        self._tampering = self._breaking = False
        self.tampered: set[bytes] = set()  # the names that a stranger has changed, or a restart
        self.changed_unnoticed: set[bytes] = set()  # the same, without restarts: those that count votes notice them
        self.fair: tuple[bytes, ...] = ()
        self.read_write: tuple[bytes, ...] = ()
        self.fences_lost: list[tuple[float, str, bool]] = []  # when, by which server, and whether that has restarted
        self.written: dict[str, list[Lease]] = defaultdict(list)  # whose writes have passed the guards, by name
        self.candidates: list[tuple[Process, Any]] = []  # who stands, or has stood, for election
        self.handoffs = Handoffs(self)
        self.register = Register()
        self.permits: dict[bytes, int] = {}  # set by its world
        self._parents: dict[bytes, float] = {}  # tokens of forked parents, and when they forked

    @property
    def now(self) -> float:
        return self._scheduler.now  # type: ignore[no-any-return]

    def broken(self, rule: str, text: str, error: BaseException | None = None) -> None:
        """Note that a rule is broken."""
        self.violations.append((self.now, rule, text))
        self._scheduler.note("RULE %s BROKEN: %s", rule, text)
        self.failure = self.failure or error

    @contextmanager
    def tampering(self, *, breaks: bool = False) -> Iterator[None]:
        """What changes meanwhile is changed by a stranger, who follows no rules; maybe all connections have broken, too."""
        self._tampering, self._breaking = True, breaks
        try:
            yield
        finally:
            self._tampering = self._breaking = False

    def trouble(self, seconds: float, *, hinders: bool = True) -> None:
        """Something goes wrong for so many seconds, and takes a while to recover; maybe it ``hinders`` a clean-up."""
        until = self.now + seconds + _RECOVERY_S
        self.trouble_until = max(self.trouble_until, until)
        if hinders:
            self.hindered_until = max(self.hindered_until, until)

    @property
    def _is_well(self) -> bool:
        """Whether nothing has been wrong for a while."""
        return self.trouble_until < self.now - _LONGEST_S

    def _was_replaced(self, process: Process, lease: Lease) -> bool:
        """Return whether a master has granted the lease that its store had replaced."""
        stores = dict.fromkeys(host.store for host in process.world.hosts)
        return any(
            span.place != store for store in stores for span in self._spans.get((store, lease.key, lease.token), ())
        )

    def _was_tampered(self, belief: Belief) -> bool:
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        return any(span.tampered for span in spans)

    def _is_sound(self, belief: Belief) -> bool:
        """Return whether a belief rests on what the store has said, and not on a server that has been replaced.

        What a stranger has taken away before the reply came is no ground either.
        """
        spans = self._spans.get((belief.host, belief.name, belief.token), ())
        if belief.host == MAJORITY:
            return belief.name not in self.changed_unnoticed
        return any(
            span.place == belief.host
            and belief.until <= span.promised + SAME_S
            and not (span.tampered and span.end <= belief.start)
            for span in spans
        )
