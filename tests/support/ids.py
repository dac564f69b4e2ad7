"""Names of test cases."""

from __future__ import annotations


def case_id(value: object) -> str:
    """Return the first characters of ``repr(value)``, without an address: a case has the same name in each process."""
    return repr(value).partition(" at 0x")[0][:30]
