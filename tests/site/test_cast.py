"""scripts/cast.py records what a terminal shows."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tests.site.test_site import script

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def cast() -> Any:
    pytest.importorskip("pyte")
    return script("cast")


def test_a_recording_has_the_texts_and_colours_of_the_terminal(cast: Any) -> None:
    program = r"print('\x1b[1;32mheld\x1b[0m  <2,000>  \x1b[34m\u2584\u2584\x1b[0m')"
    frames = cast.record([sys.executable, "-c", program])
    picture = ET.fromstring(cast.drawn(frames))
    spans = [(span.text, span.get("fill"), span.get("class")) for span in picture.iter(f"{SVG}tspan")]
    assert spans == [("held", cast.COLOURS["green"], "b"), ("<2,000>", None, None)]
    (path,) = picture.iter(f"{SVG}path")
    assert path.get("fill") == cast.COLOURS["blue"]
    style = picture.find(f"{SVG}style")
    assert style is not None
    assert "prefers-reduced-motion" in (style.text or "")


def test_a_program_that_fails_is_no_recording(cast: Any) -> None:
    with pytest.raises(SystemExit, match="ended with 3"):
        cast.record([sys.executable, "-c", "raise SystemExit(3)"])
