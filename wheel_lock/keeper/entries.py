"""The layout of a record, and how the keeper reads one; see record.py. It imports the standard library only."""

from __future__ import annotations

import os
import struct

REGIONS = ((160, 1 << 20), (320, 1 << 17), (4096, 1 << 14), (1 << 16, 1 << 11))
"""The parts of a record: the bytes of a slot, and the number of slots; the last one is for blocks. Memory is used for what
has been written."""
BRIEF, BLOCK = 1, 255
"""First bytes: of an entry of the most frequent kind, and of a block, which has the arguments of many such entries."""
ENTRY = struct.Struct("=HQ")
"""What follows the first byte of a slot: the number of bytes of the arguments, and the time-to-live in milliseconds."""

_READ_BYTES = 1 << 20

Entry = tuple[int, int, bytes]
"""A token of a dead process: the number of its release script from 1, its time-to-live in ms, the script's arguments."""


def read_record(file: int) -> list[Entry]:
    """Return the entries of a record. One that was cut while it was written is none."""
    entries: list[Entry] = []
    start = 0
    for size, slots in REGIONS:
        end, position = start + size * slots, start
        while position < end:
            try:
                data_at = os.lseek(file, position, os.SEEK_DATA)  # slots that were never written are holes
                hole_at = os.lseek(file, data_at, os.SEEK_HOLE)
            except OSError:
                break
            position = data_at - (data_at - start) % size
            while position < min(hole_at, end):
                wanted = min(_READ_BYTES, end - position, hole_at - position + size)
                data = os.pread(file, wanted // size * size, position)
                if len(data) < size:
                    return entries
                _read_slots(data, size, entries)
                position += len(data) // size * size
        start = end
    return entries


def _read_slots(data: bytes, size: int, entries: list[Entry]) -> None:
    for at in range(0, len(data) - size + 1, size):
        kind = data[at]
        if kind:
            length, ttl_ms = ENTRY.unpack_from(data, at + 1)
            begin = at + 1 + ENTRY.size
            if begin + length <= at + size:
                body = data[begin : begin + length]
                if kind == BLOCK:
                    _split_block(body, ttl_ms, entries)
                else:
                    entries.append((kind, ttl_ms, body))


def _split_block(body: bytes, ttl_ms: int, entries: list[Entry]) -> None:
    """Append the entries of a block, of two bulk strings each, up to one that is malformed."""
    index, end = body.index, 0
    try:
        while end < len(body):
            begin, text_at = end, index(b"\r\n", end) + 2
            middle = text_at + int(body[end + 1 : text_at - 2]) + 2
            text_at = index(b"\r\n", middle) + 2
            end = text_at + int(body[middle + 1 : text_at - 2]) + 2
            if not begin < middle < end or not body[middle - 2 : middle] == body[end - 2 : end] == b"\r\n":
                return
            entries.append((BRIEF, ttl_ms, body[begin:end]))
    except ValueError:
        return
