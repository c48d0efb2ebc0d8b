"""What the page for evidence asks of Python: the same as the library says of the file, in what JSON holds."""

import gzip
import json
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.answers.reading import ROWS, Reading

PICKLE = Path(eb.__file__).parent / "evidence" / "example" / "train.pickle"
ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.53 GiB of which 1.02 GiB is free. "
    "Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the allocated memory 20.10 GiB is allocated by PyTorch, and "
    "1.90 GiB is reserved by PyTorch but unallocated. <img src=x onerror=alert(1)>"
)


@pytest.fixture(scope="module", params=["healthy", "kept-until-it-dies", "pinned"])
def path(request, tmp_path_factory, recorded):
    place = tmp_path_factory.mktemp("given") / "given"
    place.write_bytes(gzip.decompress((recorded / f"{request.param}.pickle.gz").read_bytes()))
    return place


@pytest.fixture(scope="session")
def recorded(request):
    return request.config.rootpath / "tests" / "evidence" / "recorded"


def test_what_a_page_is_told_of_a_snapshot_is_what_the_library_says(path):
    reading, memory = Reading(path), eb.snapshot(path).main
    told = json.loads(json.dumps(reading.answer()))
    assert told["html"] == eb.doctor(eb.snapshot(path))._repr_html_() and told["main"] == memory.device
    (device,) = [each for each in told["devices"] if each["device"] == memory.device]
    assert (device["peak"], device["peak_event"], device["died"]) == (memory.peak, memory.peak_event, memory.died)
    events = len(memory.events)
    moment = json.loads(json.dumps(reading.moment(memory.device, memory.peak_event)))
    assert (moment["live"], moment["reserved"]) == (memory.peak, memory.reserved_at(memory.peak_event))
    held = memory.held()
    assert moment["rows"] == [[row.where, row.part, row.blocks, row.bytes] for row in held[:ROWS]]
    assert moment["more"] == max(0, len(held) - ROWS)
    crests = json.loads(json.dumps(reading.crests(memory.device, 0, events, 50)))
    sums = [sum(sizes) for sizes in zip(*crests["parts"].values(), strict=True)]
    assert sums == [memory.live[event] for event in crests["events"]] and max(sums) == memory.peak


def test_a_crest_is_the_highest_moment_of_its_stretch_by_part(path):
    memory = eb.snapshot(path).main
    events = len(memory.events)
    for first, last, columns in [(0, events, 7), (events // 3, events // 2, 400), (5, 5, 3), (events, events, 1)]:
        found = memory.crests(first, last, columns)
        assert len(found) == min(columns, last - first + 1)
        assert [event for event, _ in found] == sorted({event for event, _ in found})
        assert max(memory.live[event] for event, _ in found) == max(memory.live[first : last + 1])
        for event, sizes in found[:: max(1, len(found) // 5)]:
            assert sizes == {name: size for name, size in memory.parts(event).items() if size}


@pytest.mark.parametrize(
    ("asked", "said"),
    [(("crests", 9, 0, 1, 1), "reading.device: 9"), (("crests", None, -1, 1, 1), "crests.first: -1"), (("crests", None, 0, 10**9, 1), "crests.last"),
     (("crests", None, 0, 1, 0), "crests.columns: 0"), (("moment", None, 10**9), "moment.event"), (("moment", None, "1"), "moment.event")],
)  # fmt: skip
def test_what_no_page_asks_is_refused_by_name(asked, said):
    reading = Reading(PICKLE)
    name, device, *more = asked
    with pytest.raises(ValueError, match=said):
        getattr(reading, name)(reading.answer()["main"] if device is None else device, *more)


def test_an_error_s_text_is_answered_and_no_text_of_it_is_html(tmp_path):
    place = tmp_path / "given"
    place.write_text(ERROR)
    told = Reading(place).answer()
    assert told["devices"] == [] and told["html"] == eb.doctor(ERROR)._repr_html_() and "<img" not in told["html"]
    for text, said in [("loss: nan", "no out-of-memory message"), ("\ufffd" * 10, "no out-of-memory message")]:
        place.write_text(text)
        with pytest.raises(ValueError, match=said):
            Reading(place)
    place.write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(ValueError, match="names"):
        Reading(place)
