"""The order of a conversation's turns, by policy. Pure."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.assistant.order import Order, arrive, done, due, leave, take_up
from tests.unit.assistant.chat_world import EPOCH, opened

NOW = EPOCH


def coming(*turns, order=None, now=NOW):
    """The order after turns `(id, policy)` came."""
    order = order or Order()
    for turn_id, policy in turns:
        order = arrive(order, opened(turn_id, f"m-{turn_id}", concurrency=policy), now)
    return order


def tasks(order, do):
    return [(task.turn_id, task.by) for task in order.tasks if task.do == do]


def waiting(order):
    return [w.turn_id for w in order.waiting]


@pytest.mark.parametrize("policy", ["queue", "latest", "merge", "drop", "debounce"])
def test_the_first_turn_is_admitted_at_once(policy):
    order = coming(("a", policy))
    assert order.active == "a"
    assert [(t.do, t.parent_id) for t in order.tasks] == [("admit", "m-a")]


def test_queued_turns_are_admitted_in_order():
    order = coming(("a", "queue"), ("b", "queue"), ("c", "queue"))
    assert (order.active, waiting(order), tasks(order, "admit")) == ("a", ["b", "c"], [("a", None)])
    order = leave(order, "a", NOW)
    assert (order.active, waiting(order), tasks(order, "admit")) == ("b", ["c"], [("b", None)])
    order = leave(leave(order, "b", NOW), "c", NOW)
    assert order.idle
    assert order.tasks == ()


@pytest.mark.parametrize("policy", ["latest", "merge"])
def test_the_newest_turn_answers_for_those_that_wait(policy):
    order = coming(("a", policy), ("b", policy), ("c", policy))
    assert (order.active, waiting(order)) == ("a", ["c"])
    assert tasks(order, "supersede") == [("b", "c")]


def test_a_dropped_turn_is_superseded_by_nobody():
    order = coming(("a", "drop"), ("b", "drop"))
    assert (order.active, waiting(order), tasks(order, "supersede")) == ("a", [], [("b", None)])


def test_a_debounced_turn_waits_for_the_end_of_its_quiet_window():
    order = coming(("a", "debounce"), ("b", "debounce"))
    order = coming(("c", "debounce"), order=order, now=NOW + timedelta(milliseconds=700))
    assert tasks(order, "supersede") == [("b", "c")]
    assert [t.at for t in order.tasks if t.do == "timer"][-1] == NOW + timedelta(milliseconds=1450)
    order = leave(order, "a", NOW + timedelta(milliseconds=800))
    assert (order.active, waiting(order)) == (None, ["c"])
    assert due(order, NOW + timedelta(milliseconds=1449)).active is None
    assert due(order, NOW + timedelta(milliseconds=1450)).active == "c"


def test_a_turn_of_the_server_is_never_dropped_merged_or_debounced():
    order = coming(("a", "drop"))
    order = arrive(order, opened("s", trigger="server", concurrency="drop"), NOW)
    order = coming(("b", "latest"), ("c", "latest"), order=order)
    assert waiting(order) == ["s", "c"]


def test_a_cancelled_turn_that_waits_leaves_the_queue():
    order = leave(coming(("a", "queue"), ("b", "queue")), "b", NOW)
    assert (order.active, waiting(order)) == ("a", [])


def test_a_turn_that_comes_again_changes_nothing():
    order = coming(("a", "latest"), ("b", "latest"))
    assert coming(("a", "latest"), ("b", "latest"), order=order) == order


def test_a_failed_turn_is_taken_up_again_only_when_nothing_else_is_active():
    assert take_up(Order(), "a").active == "a"
    assert take_up(Order(active="a"), "a") == Order(active="a")
    assert take_up(Order(active="b"), "a") is None


def test_another_repository_is_attached_from_the_turn_that_names_it():
    order = Order(repository="old", imported="old", commit="a" * 40)
    kept = arrive(order, opened("a"), NOW)
    changed = arrive(order, opened("a", repository="new"), NOW)
    assert (kept.repository, kept.commit) == ("old", "a" * 40)
    assert (changed.repository, changed.imported, changed.commit) == ("new", None, None)


@given(st.lists(st.tuples(st.sampled_from(["come", "leave"]), st.integers(0, 8), st.sampled_from(["queue", "latest", "merge", "drop"]))))
def test_every_turn_is_admitted_or_superseded_once_and_at_most_one_is_active(moves):
    order, came, admitted, superseded, ended = Order(), set(), [], [], set()
    for move, number, policy in [*moves, *(("leave", n, "queue") for _ in range(9) for n in range(9))]:
        turn = f"t{number}"
        if move == "come" and turn not in came:
            came.add(turn)
            order = arrive(order, opened(turn, concurrency=policy), NOW)
        elif move == "leave" and order.active == turn:
            ended.add(turn)
            order = leave(order, turn, NOW)
        for task in order.tasks:
            (admitted if task.do == "admit" else superseded).append(task.turn_id)
            order = done(order, task)
        assert order.active is None or order.active not in ended
    assert order.idle
    assert sorted(admitted + superseded) == sorted(came)
    assert set(admitted) == ended
