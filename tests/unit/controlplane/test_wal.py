"""The frames of etcd's log, as etcd writes them."""

from __future__ import annotations

import pytest

from hpk.controlplane import wal
from tests.fakes import etcdlog


def test_crc32c_is_the_one_of_the_standard() -> None:
    """The check value of CRC-32C, and a checksum that continues another."""
    assert wal.crc32c(b"123456789") == 0xE3069283
    assert wal.crc32c(b"6789", wal.crc32c(b"12345")) == 0xE3069283


def test_frames_are_found_in_a_file_that_was_made_long_beforehand() -> None:
    """Every record, its type and place, up to the zeros."""
    log = etcdlog.Log().entry(b"a").entry(b"bb" * 100).snapshot(7)
    found = list(wal.frames(log.content + bytes(4096)))
    assert [frame.type for frame in found] == [wal.CHECKSUM, 2, 2, wal.SNAPSHOT]
    assert [frame.snapshot_index for frame in found] == [0, 0, 0, 7]
    assert found[-1].end == len(log.content)
    assert all(frame.start % 8 == 0 for frame in found)


def test_a_frame_that_is_cut_short_is_none() -> None:
    """Wherever a copy broke off, what is whole before it counts."""
    log = etcdlog.Log().entry(b"one")
    end = len(log.content)
    log.entry(b"two" * 50)
    for cut in range(end, len(log.content)):
        assert wal.sound_end(log.content[:cut]) == end
    assert wal.sound_end(log.content) == len(log.content)


@pytest.mark.parametrize("zeroed", [8, 16, 100])
def test_a_last_frame_that_was_written_in_part_does_not_count(zeroed: int) -> None:
    """Its length is there and its data is not: the checksum says so."""
    log = etcdlog.Log().entry(b"one")
    end = len(log.content)
    log.entry(b"two" * 100)
    torn = log.content[:-zeroed] + bytes(zeroed)
    assert wal.sound_end(torn + bytes(100)) == end


def test_nothing_is_sound_in_an_empty_file() -> None:
    """Zeros are no log."""
    assert wal.sound_end(b"") == wal.sound_end(bytes(100)) == 0
