"""Which failed deliveries are asked for again."""

from datetime import UTC, datetime, timedelta

from services.forge.clients import HookDelivery
from services.forge.redelivery import lost_deliveries

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def tried(number: int, guid: str, minutes_ago: float, *, ok: bool = False) -> HookDelivery:
    return HookDelivery(number, guid, NOW - timedelta(minutes=minutes_ago), ok)


def test_the_newest_try_of_what_never_succeeded_the_oldest_event_first():
    tries = [tried(4, "b", 2), tried(3, "a", 5), tried(2, "b", 20), tried(1, "c", 30)]
    assert [d.id for d in lost_deliveries(tries, NOW)] == [1, 3, 4]


def test_an_event_that_came_through_once_is_not_asked_for_again():
    assert lost_deliveries([tried(2, "a", 5), tried(1, "a", 9, ok=True)], NOW) == []
    assert lost_deliveries([tried(2, "a", 5, ok=True), tried(1, "a", 9)], NOW) == []


def test_what_is_under_way_too_old_or_was_tried_often_is_left_alone():
    assert lost_deliveries([tried(1, "a", 0.1), tried(2, "b", 3 * 24 * 60 + 1)], NOW) == []
    assert lost_deliveries([tried(n, "a", 60 - n) for n in range(5)], NOW) == []
    assert len(lost_deliveries([tried(n, "a", 60 - n) for n in range(4)], NOW)) == 1
