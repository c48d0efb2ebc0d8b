"""The interview room: what was wrong comes back, and every card is in it, on paper back to back."""

import re
from html import unescape

import pytest

import everybyte as eb
from everybyte.teach import interview
from everybyte.teach.interviewing import room

SOURCE = room.program()
SITTING = """
import { chosen, graded } from "./room.mjs";
export default ({ cards, asked, known, grades }) => {
  let queue = chosen(cards, { ...asked, most: asked.most ?? Infinity }, known);
  const seen = [queue.length];
  for (const grade of grades) {
    seen.push(cards[queue[0]].id);
    const before = known[cards[queue[0]].id] ?? 0;
    const id = cards[queue[0]].id;
    const found = graded(queue, grade, before);
    [queue, known] = [found.queue, { ...known, [id]: found.known }];
  }
  return { seen, left: queue.length, known };
};
"""
CARDS = [{"id": f"c{i}", "part": 1 + i // 4, "topic": "even" if i % 2 == 0 else "odd"} for i in range(8)]


@pytest.fixture(scope="module")
def deck():
    return interview("gpt2", "t4", eb.Setup(batch=1, sequence=128, precision="fp16-mixed"))


def sit(node, grades, known=None, **asked):
    data = {"cards": CARDS, "asked": asked, "known": known or {}, "grades": grades}
    return node(SITTING, data, room=SOURCE)


def test_a_card_that_was_wrong_returns_after_three_and_one_that_was_known_does_not(node):
    found = sit(node, [1, 3, 3, 3, 3])
    assert found["seen"] == [8, "c0", "c1", "c2", "c3", "c0"] and found["left"] == 4
    assert found["known"] == {"c0": 1, "c1": 1, "c2": 1, "c3": 1}
    nearly = sit(node, [2, *[3] * 8], known={"c0": 0})
    assert nearly["seen"][-1] == "c0" and nearly["left"] == 0


def test_a_sitting_begins_with_what_is_known_least(node):
    found = sit(node, [3, 3], known={"c0": 2, "c1": 1}, part=1)
    assert found["seen"] == [4, "c2", "c3"]
    assert sit(node, [3], topic="odd", most=2)["seen"] == [2, "c1"]


def test_a_dialogue_goes_on_as_it_was_asked_whatever_is_known(node):
    told = [{"id": f"d{i}", "part": 5, "topic": "one", "dialogue": True} for i in range(4)]
    data = {"cards": told, "asked": {"part": 5, "topic": "one"}, "known": {"d0": 3}, "grades": [3, 3]}
    assert node(SITTING, data, room=SOURCE)["seen"] == [4, "d0", "d1"]


def test_every_card_is_in_the_room_with_its_numbers_and_escaped(deck):
    said = room.given([deck])
    assert [c["id"] for c in said["cards"]] == [c.id for c in deck.cards]
    assert said["decks"][0]["texts"][0][1] == deck.card(deck.cards[0].id).answer
    text = room.page([deck])
    data = text.rpartition('made("div", "room-root")), ')[2].partition(");\n</script>")[0]
    assert "<" not in data and text.count("<script") == 1 and "http" not in data


def test_on_paper_each_answer_stands_behind_its_question(deck):
    sheets = re.findall(r'<div class="everybyte-sheet">(.*?)</div></div>', room.page([deck]))
    cells = [[unescape(cell) for cell in sheet.split("</div><div>")] for sheet in sheets]
    assert len(sheets) == 2 * -(-len(deck) // room.SHEET)
    for place, card in enumerate(deck.cards):
        page, at = divmod(place, room.SHEET)
        said = deck.card(card.id)
        assert said.question in cells[2 * page][at], card.id
        assert said.answer in cells[2 * page + 1][at ^ 1], card.id  # turned over its long side, left is right


def test_a_notebook_has_the_room_and_a_file_has_it_too(deck, tmp_path):
    assert deck.room().given["cards"][0]["id"] == deck.cards[0].id
    assert deck.save_room(tmp_path / "room.html").read_text().startswith("<!doctype html>")
