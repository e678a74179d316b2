"""What is made of a disk that fills up."""

import pytest

from libs.bus.disk import FULL_BYTES, ROOM_BYTES, DiskWatch


@pytest.fixture
def disk(tmp_path):
    free = [ROOM_BYTES]
    return free, DiskWatch(tmp_path, lambda _: free[0]), tmp_path / "nats.log"


def test_a_disk_that_fills_up_is_told_once_and_room_once(disk):
    free, watch, _ = disk
    assert watch.look() == ""
    free[0] = FULL_BYTES - 1
    assert [watch.look(), watch.look()] == ["full", ""]
    free[0] = ROOM_BYTES - 1
    assert watch.look() == ""
    free[0] = ROOM_BYTES
    assert [watch.look(), watch.look()] == ["room", ""]


def test_a_disk_that_was_full_for_a_moment_is_found_in_the_log(disk):
    _, watch, log = disk
    log.write_text("[ERR] JetStream failed to store a msg: no space left on device\n")
    assert [watch.look(), watch.look(), watch.look()] == ["full", "room", ""]


def test_what_an_earlier_broker_said_counts_no_more(tmp_path):
    log = tmp_path / "nats.log"
    log.write_text("no space left on device\n")
    watch = DiskWatch(tmp_path, lambda _: ROOM_BYTES)
    assert watch.look() == ""
    log.write_text("no space left on device\nno space left on device\n")
    watch.restarted()
    assert watch.look() == ""
