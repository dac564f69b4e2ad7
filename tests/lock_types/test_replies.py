"""Replies that no server of ours gives are malformed, and not taken for a result."""

from __future__ import annotations

import pytest

from wheel_lock.lock_types.replies import count
from wheel_lock.protocol.resp import MalformedReply, Reply


@pytest.mark.parametrize("reply", [b"1", None, [1]])
def test_what_is_no_integer_is_no_count(reply: Reply) -> None:
    with pytest.raises(MalformedReply):
        count(reply)
