"""The owner at the head of a token, and the short id of a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel_lock.options import owner_text
from wheel_lock.protocol.owners import owner_head, owner_of, token_id
from wheel_lock.runtime.tokens import new_token

_PRINTABLE = st.characters(exclude_categories=("C", "Z")) | st.just(" ")


@given(st.text(_PRINTABLE, min_size=1, max_size=64))
def test_an_owner_comes_back_from_every_form_of_token(owner: str) -> None:
    try:
        head = owner_head(owner_text("owner", owner))
    except ValueError:
        assert not owner.isprintable() or len(owner.encode()) > 64
        return
    assert head.count(b":") == 1
    assert head.isascii()
    token = new_token()
    for stored in (head + token, head + token + token, b"r:" + head + token, head + token + b":17"):
        assert owner_of(stored) == owner


@given(st.binary(max_size=300))
def test_any_bytes_have_an_id_and_at_most_a_printable_owner(token: bytes) -> None:
    owner = owner_of(token)
    assert owner is None or owner.isprintable()
    assert len(token_id(token)) == 8


@pytest.mark.parametrize(
    "token", [b"", b"@", b"@:", b"@a:short", b"@%1b[2J:" + b"x" * 22, b"@" + b"a" * 65 + b":" + b"x" * 22, b"@%ff:x"]
)
def test_a_value_of_another_form_names_no_owner(token: bytes) -> None:
    assert owner_of(token) is None
