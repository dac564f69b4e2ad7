"""A lease in any sequence of events, against a model of a few lines that knows the safety rules and nothing else."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lease.leases import LEGAL, Terms, new_lease
from wheel_lock.errors import LossReason
from wheel_lock.lease import Event, Limits, confirm_all, grant_all, local_deadline, mark_sent

TIMEOUT_S = 10.0
BELIEVED = ("HELD", "RENEWING", "OVERDUE", "EXTENDING")
FINAL = ("RELEASED", "LOST", "REFUSED")


class LeaseMachine(RuleBasedStateMachine):
    """The model: a state by name, a deadline, and whether anybody has been told that it is over."""

    @initialize(
        max_renewals=st.none() | st.integers(0, 3), hold_s=st.none() | st.floats(0.1, 40.0), limited=st.booleans()
    )
    def begin(self, max_renewals: int | None, hold_s: float | None, limited: bool) -> None:
        self.now = 100.0
        self.terms = Terms(TIMEOUT_S)
        self.lease = new_lease(self.terms)
        self.hold_until = math.inf if hold_s is None or not limited else self.now + hold_s
        self.max_renewals = max_renewals if limited else None
        self.limits = Limits(self.max_renewals, self.hold_until) if limited else None
        self.state = "PENDING"
        self.deadline = -math.inf
        self.renewals = 0
        self.over = False  # somebody has seen the deadline pass
        self.sent_at = math.nan
        self.first_reason: LossReason | None = None

    @property
    def held(self) -> bool:
        return self.state in BELIEVED and not self.over and self.now < self.deadline and self.terms.alive

    @rule(seconds=st.floats(0.0, 5.0) | st.sampled_from([0.0, 9.898, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.state == "PENDING")
    @rule(took=st.floats(0.0, 12.0))
    def the_server_grants_it(self, took: float) -> None:
        sent_at = self.now
        self.now += took
        grant_all([self.lease], sent_at, TIMEOUT_S, self.limits)
        self.state = "HELD"
        self.deadline = min(local_deadline(sent_at, TIMEOUT_S), self.hold_until)

    @precondition(lambda self: self.state in ("HELD", "OVERDUE"))
    @rule()
    def a_renewal_is_sent(self) -> None:
        mark_sent([self.lease])
        self.state = "RENEWING"
        self.sent_at = self.now

    @precondition(lambda self: not math.isnan(self.sent_at))
    @rule()
    def a_confirmation_arrives(self) -> None:
        """Of the last renewal, and at any time: after a release, a loss, an extension."""
        result = confirm_all([self.lease], self.sent_at, self.now, TIMEOUT_S)
        if self.state == "RENEWING" and not self.over and self.now < self.deadline:
            assert [*result.kept, *result.limited] == [self.lease]
            assert (self.lease in result.limited) == (self.limits is not None)
            self.state = "HELD"
            self.renewals += 1
            self.deadline = max(self.deadline, min(local_deadline(self.sent_at, TIMEOUT_S), self.hold_until))
        else:
            assert result.other == [self.lease]

    @precondition(lambda self: self.state == "EXTENDING")
    @rule(time_s=st.floats(0.1, 60.0))
    def an_extension_is_confirmed(self, time_s: float) -> None:
        self.lease.reset_deadline(local_deadline(self.now, time_s))
        self.lease.transition(Event.CONFIRMED)
        self.state = "HELD"
        self.deadline = min(local_deadline(self.now, time_s), self.hold_until)

    # A renewal is sent, and confirmed, in batches; the rules above do that.
    @rule(event=st.sampled_from([event for event in Event if event not in (Event.GRANTED, Event.RENEWAL_SENT)]))
    def anything_happens(self, event: Event) -> None:
        if event is Event.CONFIRMED and self.state in BELIEVED:
            return
        after = LEGAL.get(self.state, {}).get(event.name)
        try:
            self.lease.transition(event)
        except RuntimeError:
            assert after is None
        else:
            assert after is not None
            self.state = after

    @rule()
    def somebody_looks(self) -> None:
        """As every face does: what is seen to have lapsed is written down before the answer is given."""
        held = self.lease.is_valid(self.now)
        assert held == self.held
        if not held and self.state in BELIEVED and self.terms.alive:
            self.over = True
            self.lease.record_lapse()

    @precondition(lambda self: self.state in BELIEVED)
    @rule()
    def the_process_forks(self) -> None:
        self.terms.alive = False

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        if not hasattr(self, "lease"):
            return
        lease = self.lease
        assert lease.state.name == self.state
        assert lease.is_valid(self.now) == self.held
        assert lease.deadline == self.deadline
        assert lease.renewals == self.renewals
        assert lease.deadline <= self.hold_until
        assert not (self.over and lease.is_valid(100.0)), "not even by somebody who has read the clock earlier"

    @invariant()
    def a_reason_is_given_once(self) -> None:
        if not hasattr(self, "lease"):
            return
        assert (self.lease.loss is not None) == self.over
        if self.first_reason is None:
            self.first_reason = self.lease.loss
            if self.lease.loss is not None:
                assert self.lease.loss is self.expected_reason()
        assert self.lease.loss is self.first_reason

    def expected_reason(self) -> LossReason:
        if self.deadline >= self.hold_until:
            return LossReason.HOLD_LIMIT
        if self.max_renewals is not None and self.renewals >= self.max_renewals:
            return LossReason.RENEWAL_LIMIT
        return LossReason.NOT_CONFIRMED

    @invariant()
    def the_end_is_the_end(self) -> None:
        if hasattr(self, "lease") and self.state in FINAL:
            assert not any(self.lease.is_valid(now) for now in (-math.inf, 0.0, self.now))
            assert self.state not in LEGAL


LeaseMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestLease = LeaseMachine.TestCase
