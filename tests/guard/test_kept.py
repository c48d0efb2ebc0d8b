"""A peak that is kept, and the difference of two: it sums to the byte, and finds a line again where it has moved."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretended import kept, result

import everybyte as eb
from everybyte.guard import Change, Checked, Kept, Line, Size

MIB = 2**20


def test_a_script_s_lines_are_relative_and_have_their_text(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/attention.py").write_text("import torch\nscores = q @ k\n")
    found = Kept.of_script(result([(f"{tmp_path}/net/attention.py:2", 80), (None, 20)]), tmp_path, tmp_path)
    assert found.lines == (Line("net/attention.py:2", "scores = q @ k", "", 1, 80), Line("backward", "", "", 1, 20))
    assert (found.peak, found.reserved, found.of, found.gpu) == (100, 200, "python train.py", "h200")


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (
            {"status": 1, "stopped": "with KeyError at /x/train.py:3, after 2 optimizer steps"},
            "KeyError at /x/train.py:3",
        ),
        ({"status": 3}, "exit status 3"),
        (
            {"oom": {"requested": 2 * MIB, "free": MIB, "at": "forward", "line": "train.py:7"}},
            "out of memory, in forward: asked for 2.00 MiB; train.py:7",
        ),
    ],
)
def test_a_script_that_failed_has_no_peak(ended, words):
    with pytest.raises(ValueError, match="allowed: a command that ends") as error:
        Kept.of_script(result([("train.py:1", 8)], **ended))
    assert words in str(error.value)


def test_what_backward_made_is_the_line_s_of_forward(tmp_path):
    (tmp_path / "net.py").write_text("h = x.relu()\n")
    found = result([(None, 8)])
    found.processes[0]["devices"][0]["peak"]["held"][0] |= {"forward": f"{tmp_path}/net.py:1", "node": "ReluBackward0"}
    assert Kept.of_script(found, tmp_path, tmp_path).lines == (
        Line("net.py:1", "h = x.relu()", "ReluBackward0 in backward", 1, 8),
    )


def test_it_is_kept_to_the_byte(tmp_path):
    one = kept(("train.py:3", 7, "x = 'ü|`'"), ("backward", 5, "", "torch/nn.py:3 forward"))
    one.write(tmp_path / "one.json")
    assert Kept.read(tmp_path / "one.json") == one
    assert (
        sum('"where"' in line for line in (tmp_path / "one.json").read_text().splitlines()) == 2
    )  # git shows which moved


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peak": 13}, "baseline.peak: 13 is not the sum of its lines"), ({"lines": [{}]}, "baseline.lines.where: missing"),
        ({"versions": []}, "baseline.versions: "), ({"lines": [dict.fromkeys(("where", "code", "inner"), 3) | {"tensors": 1, "bytes": 1}]}, "baseline.lines.where: 3"),
        ({"more": 1}, "baseline.field: 'more' is unknown"), ({"lines": [{"where": "", "code": "", "inner": "", "tensors": 1, "bytes": 1.5}]}, "1.5"),
    ],
)  # fmt: skip
def test_another_file_is_refused(tmp_path, change, words):
    (tmp_path / "one.json").write_text(json.dumps(kept(("train.py:3", 12)).as_dict() | change))
    with pytest.raises(ValueError, match="allowed: what `pytest --memory-update` writes|unknown") as error:
        Kept.read(tmp_path / "one.json")
    assert words in str(error.value) and "one.json" in str(error.value)


def rows(before, after):
    return [(size, line.where) for size, line in Change(kept(*before), kept(*after)).rows]


def test_a_line_is_found_again_where_it_has_moved():
    assert rows([("a.py:3", 10, "x = f(y)")], [("a.py:9", 10, "x = f(y)")]) == []
    assert rows([("a.py:3", 10, "x = f(y)")], [("a.py:9", 14, "x = f(y)")]) == [(4, "a.py:9")]
    # Two of one text, of which the first is gone: the second is itself.
    assert rows([("a.py:3", 10, "x = f(x)"), ("a.py:5", 20, "x = f(x)")], [("a.py:5", 20, "x = f(x)")]) == [
        (-10, "a.py:3")
    ]
    # Another text in its place, or nearly the same elsewhere; nothing alike is another line.
    assert rows([("a.py:3", 10, "x = relu(y)")], [("a.py:3", 14, "hidden = g")]) == [(4, "a.py:3")]
    assert rows([("a.py:3", 10, "x = self.up(y).relu()")], [("a.py:8", 14, "x = self.up(y).gelu()")]) == [(4, "a.py:8")]
    assert rows([("a.py:3", 10, "x = f(y)")], [("b.py:3", 14, "x = f(y)")]) == [(14, "b.py:3"), (-10, "a.py:3")]
    # Another version of a library, whose lines have other numbers.
    assert rows(
        [("a.py:3", 10, "t()", "hf/llama.py:70 forward")], [("a.py:3", 14, "t()", "hf/llama.py:81 forward")]
    ) == [(4, "a.py:3")]


LINES = st.lists(
    st.tuples(st.builds("{}.py:{}".format, st.sampled_from("ab"), st.integers(1, 6)), st.integers(1, 99), st.sampled_from(["", "x = f(y)", "x = f(z)", "q"])),
    max_size=8,
)  # fmt: skip


@given(LINES, LINES)
def test_the_lines_that_moved_sum_to_what_the_peak_moved(before, after):
    change = Change(kept(*before), kept(*after))
    assert sum(size for size, _ in change.rows) == change.bytes
    assert sum(size for size, _ in Change(change.after, change.before).rows) == -change.bytes
    assert Change(change.after, change.after).rows == []


def test_the_headline_names_the_line():
    before = kept(("train.py:3", 10 * MIB), ("attention.py:88", MIB))
    assert (
        Change(before, kept(("train.py:3", 10 * MIB), ("attention.py:88", 413 * MIB))).headline
        == "peak +412.00 MiB in attention.py:88"
    )
    assert (
        Change(before, kept(("train.py:3", 8 * MIB), ("attention.py:88", MIB))).headline
        == "peak -2.00 MiB in train.py:3"
    )
    more = kept(("train.py:3", 11 * MIB), ("attention.py:88", 3 * MIB))
    assert Change(before, more).headline == "peak +3.00 MiB, of it +2.00 MiB in attention.py:88"
    assert Change(before, kept(("train.py:3", 12 * MIB))).headline == "peak +1.00 MiB; +2.00 MiB in train.py:3"
    assert Change(before, before).headline == "peak unchanged, to the byte"


def test_another_version_is_said():
    change = Change(kept(("a.py:1", 1)), kept(("a.py:1", 2), versions={"torch": "2.12.1", "peft": "0.21"}, gpu="t4"))
    assert change.differs == [
        "the GPU: h200 before, t4 now",
        "torch: 2.13.0 before, 2.12.1 now",
        "peft: none before, 0.21 now",
    ]
    assert "Not the same: torch: 2.13.0 before, 2.12.1 now" in repr(change)


def test_a_size_compares_with_words():
    size = Size(24 * 10**9)
    assert (
        size == "24 GB"
        and size < "24 GiB"
        and size <= 24 * 10**9
        and not size > "24 GB"
        and size != "24 GiB"
        and size >= "22.35 GiB"
    )
    assert hash(size) == hash(24 * 10**9) and repr(size) == "22.35 GiB (24,000,000,000 B)"
    with pytest.raises(ValueError, match="'22' is not a number followed by a unit"):
        assert size < "22"


def test_a_budget_is_kept_by_its_parts(tmp_path):
    found = eb.budget(eb.model("gpt2"), eb.Setup(batch=2, sequence=64))
    checked = Checked(Kept.of_witness(found), tmp_path / "test_it")
    assert (
        checked.peak == found.peak
        and {line.where: line.bytes for line in checked.kept.lines}.items() <= found.parts.items()
    )
    assert checked.kept.of == "gpt2 batch=2 sequence=64"
