"""Writes the files in which dispatchers keep what was learned from jobs (docs/formats/learned.md)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

# Enums of proto/pecan/v1/options.proto.
ORDER_AUTO, ORDER_TOLERANCE_EXACT = 2, 1


def adopted_order(plan: dict, order: Iterable[str], covers: Iterable[str]) -> bytes:
    """Returns a file with an order of steps that `order="auto"` has adopted under the tolerance exact.

    Args:
        plan: The plan of a job, as the status shows it.
        order: The names of all steps in the order.
        covers: The steps from the first one that moves to the last one, in the registered order.
    """
    stored = [(1, plan["fingerprint"]), (2, ORDER_AUTO), (3, ORDER_TOLERANCE_EXACT), *((4, name) for name in order)]
    # A trial of 50 elements.
    stored += [(5, _message([(1, 50)])), (7, plan["order_hash"]), *((9, name) for name in covers), (10, 1)]
    body = _message([(2, _message(stored))])
    return b"PLRN" + struct.pack("<II", 1, _crc32c(body)) + body


def _message(fields: Iterable[tuple[int, str | bytes | int]]) -> bytes:
    """Encodes a protocol buffer."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
