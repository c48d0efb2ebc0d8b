"""A measurement as JSON: what comes back is what went in, and what is not one is refused by the field's name."""

import dataclasses
import json

import pytest

import everybyte as eb
from everybyte.lab import Measurement
from everybyte.lab.measurement import model_as_dict, model_from_dict


def test_round_trip(said):
    measurement = Measurement.from_dict(said)
    assert json.loads(json.dumps(measurement.as_dict())) == said
    assert eb.Measurement is Measurement and measurement.oom is False


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "gpt2-nobias", "llama-2-7b", "deepseek-v3"])
def test_a_model_of_the_catalog_comes_back_itself(name):
    if name not in eb.models():
        pytest.skip("not in the catalog")
    assert model_from_dict(json.loads(json.dumps(model_as_dict(eb.model(name))))) == eb.model(name)


def test_a_model_of_one_s_own_comes_back_equal(small):
    for model in (small, small.replace(tied=False, ffn_width=7), eb.model("gpt2").replace(vocabulary=50304)):
        assert model_from_dict(model_as_dict(model)) == model


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", 2), ("status", "fine"), ("oom", True), ("oom", 0), ("rounding", 0.5), ("phases", {}), ("phases", {"rest": 1}),
        ("phases", 3), ("peak", 1.5), ("peak", True), ("peak", -1), ("peak", None), ("peaks", []), ("allocated_peak", "2"),
        ("driver_used", {"cuda": 1}), ("driver_used", {"cuda": "1", "nvml": None}), ("step_ms", "fast"), ("mfu", -0.1),
        ("loss", []), ("loss", [True]), ("loss", "7"), ("history", {"at": [1], "live": []}), ("device", {"name": "x"}),
        ("history", {"allocations": 3, "marks": {}, "at": [0], "live": [1, 2]}), ("date", "yesterday"), ("date", 3),
        ("date", "2001-01-01T00:00:00"), ("fingerprint", "abc"), ("fingerprint", 64 * "x"), ("versions", None),
        ("setup", 3), ("setup", {"batchsize": 8}), ("model", {"name": "gpt2"}), ("model", None), ("reason", 3),
        ("surprise", 1), ("retries", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(said, field, value):
    said[field] = value
    with pytest.raises(ValueError, match=f"^Measurement.{field}: "):
        Measurement.from_dict(said)


@pytest.mark.parametrize("field", ["schema", "status", "model", "setup", "phases", "peak", "device", "date", "loss"])
def test_what_is_missing_is_named(said, field):
    del said[field]
    with pytest.raises(ValueError, match=f"^Measurement.{field}: "):
        Measurement.from_dict(said)


def test_a_setup_that_is_none_is_refused_by_its_own_field(said):
    said["setup"]["batch"] = 0
    with pytest.raises(ValueError, match=r"^Setup\.batch: 0"):
        Measurement.from_dict(said)


def test_a_model_whose_parameters_are_others_is_refused(said):
    said["model"]["parameters"] += 1
    with pytest.raises(ValueError, match=r"^Measurement\.model: .*the \d+ parameters"):
        Measurement.from_dict(said)


@pytest.mark.parametrize(
    ("status", "needed"),
    [("skipped", {"reason": "too big"}), ("failed", {"reason": "it died"}), ("oom", {"out_of_memory": None})],
)
def test_other_statuses_need_less_but_not_nothing(said, status, needed):
    kept = ("schema", "model", "setup", "device", "date", "fingerprint", "allocated_peak", "reserved_peak", "retries")
    said = {name: said[name] for name in (*kept, "baseline", "versions", "settings")} | {"status": status}
    field, value = needed.popitem()
    with pytest.raises(ValueError, match=f"^Measurement.{field}: None"):
        Measurement.from_dict(said)
    said[field] = value or {"requested": 2, "free": 1, "at": "backward"}
    measurement = Measurement.from_dict(said)
    assert Measurement.from_dict(measurement.as_dict()).as_dict() == measurement.as_dict()
    assert measurement.as_dict()["oom"] is (status == "oom") and "peak" not in measurement.as_dict()


def test_it_lies_beside_the_other_witnesses(said, small, tiny):
    said["phases"]["rest"] = eb.budget(small, tiny, rounding=512).phases["rest"]
    measurement = Measurement.from_dict(said)
    witnesses = eb.budget(small, tiny, rounding=512), eb.dry_run(small, tiny, rounding=512)
    compared = eb.compare(*witnesses, measurement)
    assert list(compared.witnesses) == ["predict", "dry run", "measure"]
    rows = dict(compared.rows)
    assert rows["parameters"][2] is None and rows["peak"] == [witnesses[0].peak, witnesses[1].peak, 2000]
    assert compared.differences["rest"] == 0 and compared.differences["peak"] == witnesses[0].peak - 2000
    with pytest.raises(ValueError, match=r"^compare\.rounding"):
        eb.compare(eb.budget(small, tiny), measurement)


def test_it_is_shown(said):
    measurement = Measurement.from_dict(said)
    assert "peak, at backward" in repr(measurement) and "25.0%" in repr(measurement)
    strange = dataclasses.replace(measurement, status="failed", reason="<b>", device={"name": "<i>"})
    assert "<b>" not in strange._repr_html_() and "<i>" not in strange._repr_html_()
