"""What a poller reports of sockets and of its waker: the same with epoll as with a selector."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterator

import pytest

from tests.support.timers import NewTimer, ask
from tests.support.waiting import eventually
from wheel_lock.runtime import loop, native
from wheel_lock.runtime.poller import (
    BOTH,
    EpollPoller,
    EventWaker,
    Poller,
    SelectorPoller,
    SocketWaker,
    new_poller,
    new_waker,
)

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Waker = EventWaker | SocketWaker

needs_epoll = pytest.mark.skipif(native.epoll is None or not hasattr(os, "eventfd"), reason="no epoll, or no eventfd")


KINDS = [
    pytest.param((EventWaker, EpollPoller), marks=needs_epoll, id="epoll"),
    pytest.param((new_waker, SelectorPoller), id="a selector"),
    pytest.param((SocketWaker, SelectorPoller), id="a selector and sockets"),
]


@pytest.fixture(params=KINDS)
def polled(request: pytest.FixtureRequest) -> Iterator[tuple[Waker, Poller]]:
    new, kind = request.param
    waker: Waker = new()
    poller: Poller = kind(waker)
    yield waker, poller
    poller.close()
    waker.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there:
        yield here, there


def nothing(events: int) -> None: ...


def reported(poller: Poller) -> dict[int, int]:
    """The events of each watched socket that is ready."""
    return {fd: poller.meanings.get(events, BOTH) for fd, events in poller.poll(0.0) if fd in poller.watched}


def test_a_socket_is_reported_with_the_events_of_its_last_watch(
    polled: tuple[Waker, Poller], ends: tuple[socket.socket, socket.socket]
) -> None:
    _, poller = polled
    here, there = ends
    poller.watch(here, READ, (nothing, None))
    assert reported(poller) == {}
    poller.watch(here, WRITE, (nothing, None))
    assert reported(poller) == {here.fileno(): WRITE}
    there.send(b"x")
    poller.watch(here, BOTH, (nothing, None))
    assert reported(poller) == {here.fileno(): BOTH}
    last = (lambda events: None, None)
    poller.watch(here, READ, last)
    assert poller.watched == {here.fileno(): last}
    for _ in range(2):  # until it is read
        assert reported(poller) == {here.fileno(): READ}
    there.close()
    assert reported(poller)[here.fileno()] & READ
    poller.unwatch(here)
    poller.unwatch(here)
    assert reported(poller) == {}
    assert poller.watched == {}


def test_a_socket_that_was_closed_under_watch_can_be_unwatched(polled: tuple[Waker, Poller]) -> None:
    _, poller = polled
    gone, other = socket.socketpair()
    with other:
        poller.watch(gone, READ, (nothing, None))
        fd = gone.fileno()
        gone.close()
        poller.unwatch(gone)
        with socket.socket() as another:  # with the same number, as a rule
            if another.fileno() == fd and isinstance(poller, EpollPoller):
                poller.unwatch(another)
                assert poller.watched == {}


def test_each_use_of_the_waker_ends_one_poll(polled: tuple[Waker, Poller]) -> None:
    waker, poller = polled
    for _ in range(3):
        waker.wake()
        waker.wake()
        assert len(poller.poll(None)) == 1
        assert poller.poll(0.0) == []
    for _ in range(100_000):  # more than a socket buffer holds
        waker.wake()
    assert len(poller.poll(None)) == 1


@needs_epoll
def test_a_waker_on_epoll_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    waker = EventWaker()
    poller = EpollPoller(waker)
    monkeypatch.setattr(EventWaker, "clear", lambda waker: pytest.fail("it was read"))
    for _ in range(1000):
        waker.wake()
        assert len(poller.poll(None)) == 1
    poller.close()
    waker.close()


def test_a_use_of_the_waker_before_there_was_a_poller_counts(polled: tuple[Waker, Poller]) -> None:
    waker, old = polled
    waker.wake()
    poller = type(old)(waker)
    assert len(poller.poll(None)) == 1
    poller.close()


def test_the_fastest_poller_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    waker = new_waker()
    poller = new_poller(waker)
    assert isinstance(poller, EpollPoller) == (native.epoll is not None and hasattr(os, "eventfd"))
    poller.close()
    sockets = SocketWaker()
    poller = new_poller(sockets)
    assert isinstance(poller, SelectorPoller)  # the waker must be read
    poller.close()
    sockets.close()
    monkeypatch.setattr(native, "epoll", None)
    poller = new_poller(waker)
    assert isinstance(poller, SelectorPoller)
    poller.close()
    waker.close()


@pytest.mark.parametrize("kind", [EventWaker, SocketWaker])
def test_a_timer_works_on_a_selector_too(
    new_timer: NewTimer, monkeypatch: pytest.MonkeyPatch, ends: tuple[socket.socket, socket.socket], kind: type[Waker]
) -> None:
    if kind is EventWaker and not hasattr(os, "eventfd"):
        pytest.skip("no eventfd")
    monkeypatch.setattr(loop, "new_waker", kind)
    monkeypatch.setattr(native, "epoll", None)
    here, there = ends
    timer = new_timer()
    heard: list[bytes] = []
    for _ in range(100):
        ask(timer)  # which sleeps between two
    timer.post(lambda: timer.watch(here, READ, lambda events: heard.append(here.recv(10))))
    ask(timer)
    there.send(b"x")
    eventually(lambda: heard == [b"x"])
    assert isinstance(timer._poller, SelectorPoller)
    timer.stop()
