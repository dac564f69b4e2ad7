"""The timing wheel and its ticks. Pure: it is handed the time as an integer and never asks for it."""

from wheel_lock.wheel.ticks import TickScale
from wheel_lock.wheel.wheel import Wheel, WheelEntry

__all__ = ["TickScale", "Wheel", "WheelEntry"]
