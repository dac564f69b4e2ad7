"""Calling threads whose results arrive together wake one another in turn, and none of them depends on the others."""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock

from tests.support.background import PATIENCE_S
from tests.support.timers import NewTimer, kill
from tests.support.waiting import eventually
from wheel_lock.runtime.timer import HashedWheelTimer


def closed_gates(number: int) -> list[LockType]:
    gates = [allocate_lock() for _ in range(number)]
    for gate in gates:
        gate.acquire()
    return gates


def open_ones(gates: list[LockType]) -> list[bool]:
    return [not gate.locked() for gate in gates]


def put(timer: HashedWheelTimer, gates: list[LockType]) -> None:
    for gate in gates:
        timer.wake_in_turn(gate.release)


def test_outside_of_a_turn_each_is_woken_at_once(by_hand: HashedWheelTimer) -> None:
    gates = closed_gates(2)
    put(by_hand, gates)
    assert open_ones(gates) == [True, True]


def test_the_first_is_woken_before_the_thread_sleeps_and_each_wakes_the_next(by_hand: HashedWheelTimer) -> None:
    gates = closed_gates(3)
    by_hand.post(lambda: put(by_hand, gates))
    by_hand.turn(block=True)
    assert open_ones(gates) == [False] * 3
    by_hand.turn(block=True)
    assert open_ones(gates) == [True, False, False]
    by_hand.relay()
    assert open_ones(gates) == [True, True, False]
    by_hand.relay()
    by_hand.relay()  # there is none any more
    assert open_ones(gates) == [True] * 3


def test_those_that_no_other_wakes_are_woken_by_the_thread_soon(by_hand: HashedWheelTimer) -> None:
    gates = closed_gates(3)
    by_hand.post(lambda: put(by_hand, gates))
    by_hand.turn(block=True)
    for _ in range(50):  # none of these sleeps for longer than 5 ms
        by_hand.turn(block=True)
        if all(open_ones(gates)):
            break
    assert open_ones(gates) == [True] * 3


def test_a_turn_that_does_not_sleep_leaves_none(by_hand: HashedWheelTimer) -> None:
    gates = closed_gates(3)
    by_hand.post(lambda: put(by_hand, gates))
    by_hand.turn()
    assert open_ones(gates) == [True] * 3


def test_with_a_thread_all_are_woken_whoever_of_them_wakes_another(new_timer: NewTimer) -> None:
    timer, woken = new_timer(), list[int]()
    gates = closed_gates(20)

    def wait(number: int) -> None:
        gates[number].acquire()
        if number % 5:  # the others do as if they had been interrupted
            timer.relay()
        woken.append(number)

    crew = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
    for thread in crew:
        thread.start()
    timer.post(lambda: put(timer, gates))
    for thread in crew:
        thread.join(PATIENCE_S)
    assert sorted(woken) == list(range(20))


def test_all_are_woken_if_the_thread_dies_or_stops(new_timer: NewTimer) -> None:
    for end in (kill, HashedWheelTimer.stop):
        timer, gates = new_timer(), closed_gates(3)
        timer.post(lambda timer=timer, gates=gates: put(timer, gates))  # type: ignore[misc]
        eventually(lambda gates=gates: any(open_ones(gates)), PATIENCE_S)  # type: ignore[misc]
        end(timer)
        eventually(lambda gates=gates: all(open_ones(gates)), PATIENCE_S)  # type: ignore[misc]
    timer, gates = new_timer(), closed_gates(3)

    def die() -> None:
        put(timer, gates)
        raise SystemExit

    timer.post(die)
    eventually(lambda: all(open_ones(gates)), PATIENCE_S)


def test_several_threads_that_wake_others_at_a_time_open_each_gate_once(new_timer: NewTimer) -> None:
    timer = new_timer()
    gates = closed_gates(2000)
    takers = [threading.Thread(target=lambda: [timer.relay() for _ in range(600)]) for _ in range(4)]
    timer.post(lambda: put(timer, gates))
    for thread in takers:
        thread.start()
    for thread in takers:
        thread.join(PATIENCE_S)
    eventually(lambda: all(open_ones(gates)), PATIENCE_S)
    assert not timer.gates
