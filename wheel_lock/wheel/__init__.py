"""The timing wheel and its ticks. Pure: time is an argument, an integer."""

from wheel_lock.wheel.ticks import TickScale
from wheel_lock.wheel.wheel import Wheel, WheelEntry

__all__ = ["TickScale", "Wheel", "WheelEntry"]
