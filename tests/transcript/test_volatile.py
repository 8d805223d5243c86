"""Volatile blocks of system prompts."""

from __future__ import annotations

from tests.transcript.conversations import result, user

from paceline.transcript.volatile import Steady, VolatileBlocks, VolatileRule

BILLING = VolatileRule(r"x-billing-header: .*")
CLOCK = VolatileRule(r"<now>\n(?:.*\n)*?</now>", move=True)
SYSTEM = "x-billing-header: a=1; b={};\nYou are brief.\n<now>\n{}\n</now>\nNot x-billing-header: it."


def test_blocks_are_left_out_or_moved_and_counted() -> None:
    steady = VolatileBlocks([BILLING, CLOCK]).take_out(SYSTEM.format(7, "noon"))
    assert steady.system == "You are brief.\nNot x-billing-header: it."
    assert (steady.moved, steady.count) == (("<now>\nnoon\n</now>",), 2)


def test_what_is_left_is_the_same_each_time() -> None:
    blocks = VolatileBlocks([BILLING, CLOCK])
    assert blocks.take_out(SYSTEM.format(1, "noon")).system == blocks.take_out(SYSTEM.format(2, "one")).system


def test_each_block_of_a_rule_counts() -> None:
    steady = VolatileBlocks([CLOCK]).take_out("<now>\n1\n</now>\nBe brief.\n<now>\n2\n</now>")
    assert steady == Steady("Be brief.\n", ("<now>\n1\n</now>", "<now>\n2\n</now>"), 2)


def test_only_whole_lines_count() -> None:
    text = "See x-billing-header: 1"
    assert VolatileBlocks([BILLING]).take_out(text) == Steady(text)
    assert VolatileBlocks([BILLING]).take_out("x-billing-header: 1") == Steady("", (), 1)
    assert VolatileBlocks().take_out(SYSTEM) == Steady(SYSTEM)


def test_moved_blocks_end_the_last_message() -> None:
    steady = Steady("", ("now: 1", "now: 2"), 2)
    assert steady.at_end([user("a"), result("b")]) == (user("a"), result("b\n\nnow: 1\n\nnow: 2"))
    assert Steady("", (), 1).at_end([user("a")]) == (user("a"),)
