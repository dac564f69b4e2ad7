"""What the tests of the wheel put on it."""

from __future__ import annotations

from wheel_lock.wheel import WheelEntry


class Timer(WheelEntry):
    """An entry with a name, so that a failure can be read."""

    __slots__ = ("name",)

    def __init__(self, name: object = "timer") -> None:
        self.tick = -1
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name} at {self.tick}>"


def timers(count: int) -> list[Timer]:
    return [Timer(number) for number in range(count)]
