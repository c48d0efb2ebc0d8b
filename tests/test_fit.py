"""What fits: held against trying every value; and where nothing does, what is said."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ran import scripts

import everybyte as eb
from everybyte import units
from everybyte.answers.communicators import communicators
from everybyte.answers.fit import fit
from everybyte.answers.headroom import ROUNDING, Headroom
from everybyte.answers.plan import plan
from everybyte.ask.choices import ATTENTIONS, CHECKPOINTINGS, COMMON_OPTIMIZERS, OPTIMIZER_IMPLS, PRECISIONS
from everybyte.catalog.outside import NEAR, Communicator
from everybyte.command import main
from everybyte.common.search import fewest, most

NOTHING = Headroom(driver=0, context=0, workspace=0, fragmentation=0, nccl=0)
GPT2, XL = eb.model("gpt2"), eb.model("gpt2-xl")


def card(memory, **more):
    given = {
        "advertised_gb": 1,
        "bandwidth": 10**12,
        "bf16_flops": 10**14,
        "fp32_flops": 10**13,
        "host_link": 1,
        "capability": "8.0",
        "source": "a test",
    }
    return eb.Gpu(name="card", title="a card", memory=memory, memory_source="reported", **given | more)


@st.composite
def runs(draw, losses=("plain", "chunked")):
    """A small GPT, a setup, and which field to vary."""
    heads = draw(st.integers(1, 4))
    model = eb.Model(
        name="drawn", layers=draw(st.integers(1, 5)), width=heads * 8 * draw(st.integers(1, 6)), heads=heads,
        vocabulary=draw(st.integers(2, 4000)), positions=32, tied=draw(st.booleans()),
    )  # fmt: skip
    loss, batch, sequence = draw(st.sampled_from(losses)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    setup = eb.Setup(
        batch=batch, sequence=sequence, precision=draw(st.sampled_from(list(PRECISIONS))),
        optimizer=draw(st.sampled_from(COMMON_OPTIMIZERS)), optimizer_impl=draw(st.sampled_from(OPTIMIZER_IMPLS)),
        attention=draw(st.sampled_from(ATTENTIONS)), dropout=draw(st.sampled_from([0.0, 0.1])),
        checkpointing=draw(st.sampled_from([c for c in CHECKPOINTINGS if c not in ("every-k", "one-in-k") or model.layers > 1])),
        accumulation=draw(st.integers(1, 3)), loss=loss,
        loss_chunks=draw(st.integers(1, batch * sequence)) if loss == "chunked" else 8,
    )  # fmt: skip
    return model, setup, draw(st.sampled_from(["batch", "sequence"]))


def every(model, setup, vary, most):
    """Each value that the setup allows, up to `most`, with its peak."""
    found = {}
    for value in range(1, most + 1):
        try:
            found[value] = eb.budget(model, setup.replace(**{vary: value}), ROUNDING).peak
        except ValueError:
            assert setup.loss == "chunked" or value > model.positions
    return found


@settings(max_examples=30)
@given(runs(), st.integers(1, 20), st.integers(-1, 1))
def test_it_is_what_trying_every_value_finds(run, at, slack):
    model, setup, vary = run
    peaks = every(model, setup, vary, 32)
    at = sorted(peaks)[min(at, len(peaks)) - 1]
    memory = peaks[at] + slack  # exactly enough for a value, a byte too few, a byte to spare
    found = fit(model, setup, card(memory), vary, NOTHING)
    right = [value for value, peak in peaks.items() if peak <= memory]
    if not right:
        assert found.value is None and not found.fits and found.free < 0
    elif vary == "batch" and right[-1] == 32:
        assert found.value >= 32
    else:
        assert found.value == right[-1]
        assert found.peak == peaks[found.value] and found.free == memory - found.peak >= 0
        if found.next:
            assert (
                found.next.peak == peaks[found.value + 1] > memory and found.limit["over"] == found.next.peak - memory
            )


@settings(max_examples=25)
@given(runs(losses=("plain",)))
def test_the_peak_grows_with_batch_and_sequence(run):
    """What the search stands on. The chunked loss breaks it, by its chunks' rounding."""
    peaks = list(every(*run, 24).values())
    assert peaks == sorted(peaks)


def test_the_chunked_loss_may_fall_and_the_largest_is_found():
    model = eb.Model(name="falls", layers=1, width=48, heads=6, vocabulary=1039, positions=128)
    setup = eb.Setup(
        precision="bf16",
        optimizer="sgd",
        attention="eager",
        dropout=0.1,
        loss="chunked",
        loss_chunks=3,
        sequence=1,
        batch=3,
    )
    peaks = every(model, setup, "batch", 60)
    falling = [v for v in peaks if v + 1 in peaks and peaks[v + 1] < peaks[v]]
    assert falling
    for value in falling:
        found = fit(model, setup, card(peaks[value + 1]), "batch", NOTHING)
        assert found.value == max(v for v, peak in peaks.items() if peak <= found.usable) > value


@given(
    st.integers(1, 500),
    st.integers(0, 500),
    st.integers(-5, 600),
    st.integers(1, 9),
    st.integers(0, 700),
    st.integers(0, 9),
)
def test_the_searches(low, more, border, slope, bend, steeper):
    """Over a line with a bend, or one flat up to the border."""
    high, asked = low + more, []

    def over(n):
        asked.append(n)
        return slope * (n - border) + steeper * (max(n - bend, 0) - max(border - bend, 0))

    right = min(border, high) if border >= low else None
    assert most(over, low, high) == right
    assert set(asked) <= set(range(low, high + 1)) and len(asked) == len(set(asked)) <= 5 + 3 * more.bit_length()
    assert most(lambda n: -1 if n <= border else 1, low, high) == right


@given(st.integers(1, 4), st.integers(0, 300), st.integers(1, 200), st.integers(0, 9))
def test_the_fewest(low, more, border, seed):
    """Of a share that falls with the GPUs, and goes up and down a little by what fills it up."""
    high = low + more

    def over(n):
        return 10**6 // n - 10**6 // border + (n * seed * 7919) % 50 - 25

    right = next((n for n in range(low, high + 1) if over(n) <= 0), None)
    value, enough = fewest(over, low, high, 100)
    if enough:
        assert value == right
    elif right is not None:  # between the last doubling and the end of the range
        assert right > max(low * 2**k for k in range(12) if low * 2**k <= high)
    # One GPU needs no buffers to talk to others: it may be enough where two are not.
    assert fewest(lambda n: n > low, low, high, 0) == (low, True)


def test_a_gpu_given_by_its_size_has_no_plan_and_everything_else():
    setup = eb.Setup(batch=2, precision="bf16")
    by_size = fit(XL, setup, "24 GiB")
    assert by_size.gpu == eb.Gpu(memory="24 GiB") and by_size.usable < eb.gpu("rtx-4090").memory
    assert by_size.value == fit(XL, setup, eb.Gpu(memory=24 * 2**30)).value > 0
    none = fit(XL, setup, "2 GiB")
    assert not none.fits and none.nearest_gpu and none.nearest_setup is None and none.as_dict()["nearest"]["gpu"]
    with pytest.raises(
        ValueError, match=r"^Gpu\.bandwidth: 0 of the GPU of 24\.00 GiB, .*; eb\.fit asks for the memory alone"
    ):
        plan(XL, setup, "24 GiB")
    for wrong, said in (
        (25769803776, "or a size with its unit: '24.00 GiB'"), (10**5000, "or a size with its unit: '24 GiB'"),
        ("24 GBs", "Gpu.memory: unit: 'GBs'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            fit(XL, setup, wrong)


@pytest.mark.parametrize("gpu", ["a100-40gb", "h100-80gb", "mi300x", "t4"])
@pytest.mark.parametrize("vary", ["batch", "sequence"])
def test_gpt2_xl_over_the_catalog(gpu, vary):
    setup = eb.Setup(batch=2, precision="fp16-mixed")
    found = fit(XL, setup, gpu, vary)
    assert found.usable == eb.gpu(gpu).memory - sum(found.headroom.terms(eb.gpu(gpu))[i].bytes for i in range(6))
    if not found.fits:
        assert gpu == "t4" and eb.budget(XL, setup.replace(**{vary: 1}), ROUNDING).peak > found.usable
        return
    assert found.peak == eb.budget(XL, found.setup, ROUNDING).peak <= found.usable
    if found.value == 1024 and vary == "sequence":
        assert found.limit == {"bound": "gpt2-xl ends at 1,024 positions"}
    else:
        after = eb.budget(XL, setup.replace(**{vary: found.value + 1}), ROUNDING)
        assert (after.peak > found.usable) != bool(found.failed and found.failed.failed)
        if found.failed:
            assert "fits by its peak, and the allocator runs out" in found.why()
            return
        assert found.limit["part"] == max(after.parts, key=after.parts.get)
        assert (
            found.limit["at"] == after.peak_at and found.limit["part"] in found.why() and after.peak_at in found.why()
        )


def test_it_asks_for_few_budgets():
    asked = []

    def counted(model, setup, rounding):
        asked.append(setup.batch)
        return eb.budget(model, setup, rounding)

    assert fit(GPT2, eb.Setup(precision="bf16-mixed"), "b200", witness=counted).value > 150
    assert len(asked) < 24


def test_fewest_gpus():
    """A stand-in for a sharded step's witness: half of its bytes are shared among the GPUs."""

    def sharded(model, setup, rounding):
        found = eb.budget(model, setup.replace(gpus=1, sharding="none", replicas=1), rounding)
        size = 10**9 + 10**9 // (setup.gpus // setup.replicas)
        return type(found)(model, setup, rounding, found.moments, found.parts, found.phases, size, "backward")

    zero3 = eb.Setup(sharding="zero3")
    found = fit(GPT2, zero3, card(10**9 + 10**9 // 7), "gpus", NOTHING, sharded)
    assert found.value == 7 and found.next.peak > found.usable and "6 GPUs are" in found.why()
    found = fit(GPT2, zero3.replace(gpus=2, replicas=2), card(10**9 + 10**9 // 7), "gpus", NOTHING, sharded)
    assert found.value == 14 and found.next.setup.gpus == 12
    assert fit(GPT2, zero3, card(2 * 10**9), "gpus", NOTHING, sharded).limit == {"bound": "no fewer are possible"}
    assert not fit(GPT2, zero3, card(10**9), "gpus", NOTHING, sharded).fits
    assert fit(GPT2, eb.Setup(), "t4", "gpus").value == 1
    assert not fit(XL, eb.Setup(), "t4", "gpus").fits  # without sharding each of many would hold everything


def test_where_nothing_fits_it_says_what_is_too_large_and_what_would_do():
    mixed = eb.Setup(precision="bf16-mixed")
    found = fit(XL, mixed, "rtx-3080")
    assert found.value is None and found.limit["part"] == "optimizer"
    assert "optimizer alone take 17.41 GiB" in found.why() and "batch 1" in found.why()
    assert found.nearest_gpu.name == "rtx-5090"
    smaller = [g for g in eb.gpus().values() if g.memory < found.nearest_gpu.memory]
    assert smaller and all(Headroom().usable(g) < found.peak for g in smaller)
    assert Headroom().usable(found.nearest_gpu) >= found.peak
    host = sum(eb.budget(XL, found.nearest_setup.setup).host.values())
    assert found.nearest_setup.setup.offload == "cpu" and f"cpu, {units.text(host)} in the host's memory" in repr(found)
    nothing = fit(XL, mixed, card(2**29))
    assert nothing.nearest_setup is None and "none of the switches is enough" in repr(nothing)
    near = fit(XL, eb.Setup(), "rtx-4090")
    rung = near.nearest_setup
    assert eb.budget(XL, rung.setup, ROUNDING).peak <= near.usable and rung.text() in repr(near)
    assert "<p>" in near._repr_html_() and "&" in fit(GPT2.replace(name="<&>"), eb.Setup(), card(10**7))._repr_html_()


def test_a_step_that_is_not_derived_is_refused_by_name_and_counted_by_a_witness_that_knows_it():
    normed = eb.model("opt-350m")
    for call in (fit, plan):
        with pytest.raises(ValueError, match="^Model.post_norm: True of opt-350m .*eb.dry_run"):
            call(normed, eb.Setup(sequence=64), "h200")
    small = normed.replace(layers=2, width=64, heads=4, ffn_width=96, embedding_width=32, vocabulary=500)
    eager = eb.Setup(sequence=256, attention="eager")
    wanted = eb.dry_run(small, eager.replace(batch=3), rounding=ROUNDING).peak
    counted = fit(small, eager, card(wanted), "batch", NOTHING, eb.dry_run)
    assert counted.value == 3 and counted.free == 0 and counted.next.peak > wanted
    less = fit(small, eager, card(1000), "batch", NOTHING, eb.dry_run)
    assert not less.fits and less.nearest_setup is None and "switches" not in repr(less)


def test_a_gpu_without_bf16_is_refused_by_name():
    for name in ("t4", "v100-16gb", "v100-32gb"):
        for precision in ("bf16-mixed", "bf16-master", "bf16"):
            for call in (fit, plan):
                with pytest.raises(
                    ValueError,
                    match=f"^Setup.precision: '{precision}' on {name}, which has no bf16; allowed: fp32, fp16-mixed$",
                ):
                    call(GPT2, eb.Setup(precision=precision), name)
    small = XL.replace(layers=20)  # 13 GiB: more than an RTX 3080 has
    usual, mixed = (fit(small, eb.Setup(precision=p, sequence=64), card(2**29)) for p in ("fp32", "bf16-mixed"))
    assert usual.nearest_gpu.name == "t4" and mixed.nearest_gpu.name == "rtx-4060-ti-16gb"


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((GPT2, eb.Setup(), "h1000"), "gpu.name: 'h1000' is unknown; did you mean"),
        ((GPT2, eb.Setup(), "h200", "layers"), "fit.vary: 'layers' is unknown; allowed: batch, sequence, gpus"),
        ((GPT2, eb.Setup(sequence=2000), "h200"), "Setup.sequence: 2000 is more than the 1024 positions of gpt2"),
    ],
)
def test_bad_input(arguments, said):
    with pytest.raises(ValueError) as error:
        fit(*arguments)
    assert said in str(error.value)


def test_headroom_is_named_and_the_reader_s_to_set():
    a10, h100 = eb.gpu("a10"), eb.gpu("h100-80gb")
    terms = {t.name: t for t in Headroom().terms(h100)}
    assert list(terms) == ["driver", "context", "workspace", "fragmentation", "nccl", "other"]
    assert all(t.reason and t.source for t in terms.values())
    assert terms["driver"].bytes == 0 and terms["workspace"].bytes == 2 * 2**25
    assert {t.name: t.bytes for t in Headroom().terms(a10)}["driver"] == 441 * 2**20
    mine = Headroom(context=0, other=2**30)
    assert mine.usable(h100) == Headroom().usable(h100) + terms["context"].bytes - 2**30
    assert next(t for t in mine.terms(h100) if t.name == "context").source == "set by the reader"
    assert fit(XL, eb.Setup(), h100, headroom=Headroom(other=40 * 2**30)).value < fit(XL, eb.Setup(), h100).value
    for bad in (-1, 0.5, True, "1 GiB"):
        with pytest.raises(ValueError, match="Headroom.context"):
            Headroom(context=bad)


def test_the_command(capsys):
    def said(*arguments, status=0):
        assert main(["fit", *arguments]) == status
        return capsys.readouterr().out

    found = json.loads(said("gpt2-xl", "--gpu", "a100-40gb", "--precision", "bf16-mixed", "--json"))
    assert found["value"] == fit(XL, eb.Setup(precision="bf16-mixed"), "a100-40gb").value == 4
    assert (
        found["expandable"]["value"] == 5
        and found["setup"]["batch"] == 4
        and found["usable"] - found["peak"] == found["free"] > 0
    )
    assert sum(found["headroom"].values()) == found["gpu"]["memory"] - found["usable"]
    assert "batch 4 fits; 5 with" in said("gpt2-xl", "--gpu", "a100-40gb", "--precision", "bf16-mixed")
    both = said("gpt2", "--gpu", "rtx-4090", "--precision", "bf16-mixed")
    grows = said("gpt2", "--gpu", "rtx-4090", "--precision", "bf16-mixed", "--conf", "expandable_segments:True")
    assert "batch 22 fits; 27 with PYTORCH_ALLOC_CONF=expandable_segments:True" in both and "batch 27 fits" in grows
    less = json.loads(
        said("gpt2-xl", "--gpu", "a100-40gb", "--precision", "bf16-mixed", "--keep-other", "6GiB", "--json")
    )
    assert less["value"] < 4 and less["headroom"]["other"] == 6 * 2**30
    assert json.loads(said("gpt2", "--gpu", "t4", "--vary", "sequence", "--batch", "2", "--json"))["value"] == 1024
    assert json.loads(said("gpt2-xl", "--gpu", "rtx-4090", "--json", status=1))["value"] is None
    nothing = json.loads(said("gpt2-xl", "--gpu", "rtx-4090", "--plan", "--json"))  # other switches make it fit
    assert (
        nothing["value"] is None
        and nothing["nearest"]["gpu"] == "rtx-5090"
        and nothing["nearest"]["setup"]["precision"] == "bf16"
    )
    assert nothing["plan"]["best"] and nothing["plan"]["ladder"] and nothing["plan"]["asked"]["switches"] == {}
    assert "optimizer fused" in said("gpt2-xl", "--gpu", "rtx-4090", "--plan")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["gpt2"], "--gpu"),
        (["gpt2", "--gpu", "h300"], "gpu.name: 'h300' is unknown"),
        (["gpt2", "--gpu", "h200", "--vary", "width"], "fit.vary: 'width'"),
        (["gpt2", "--gpu", "h200", "--conf", "grow:True"], "PYTORCH_ALLOC_CONF.setting: 'grow'"),
        (["gpt2", "--gpu", "h200", "--keep-other", "1"], "not a number followed by a unit"),
        (
            ["gemma-2-2b", "--gpu", "h200", "--attention", "flash"],
            "Setup.attention: 'flash' is not what transformers' gemma-2-2b has",
        ),
        (
            ["gpt2", "--gpu", "t4", "--precision", "bf16"],
            "Setup.precision: 'bf16' on t4, which has no bf16; allowed: fp32, fp16-mixed",
        ),
    ],
)
def test_bad_input_to_the_command(capsys, arguments, said):
    assert main(["fit", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_the_value_found_runs_and_the_next_does_not_by_the_allocator_too():
    """On an RTX 4090 27 sequences fit by their peak. With the defaults the allocator runs out from 23 on."""
    setup, gpu = eb.Setup(sequence=1024, precision="bf16-mixed"), eb.gpu("rtx-4090")
    both, grows, plain = (eb.fit(GPT2, setup, gpu, configuration=c) for c in (None, "expandable_segments:True", ""))
    room = Headroom().room(gpu)
    assert room == Headroom().usable(gpu) + 2 * gpu.cublas_workspace + 22 * 2**20
    for found, configuration in ((grows, "expandable_segments:True"), (plain, "")):
        runs = {
            n: eb.budget(GPT2, setup.replace(batch=n)).on(gpu, configuration, room, steps=4, whole=False)
            for n in (found.value, found.value + 1)
        }
        assert not runs[found.value].failed and (runs[found.value + 1].failed or found.next.peak > found.usable)
        assert found.reserved.reserved == runs[found.value].reserved <= room
        assert found.as_dict()["reserved"] == found.reserved.reserved and found.expandable is None
    assert plain.value < grows.value and plain.next.peak <= plain.usable and plain.failed.failed
    assert "fits by its peak, and the allocator runs out" in plain.why() and plain.limit["over"] > 0
    assert "Simulated with PyTorch's defaults" in repr(plain) and "reserved, simulated" in repr(grows)
    assert both.value == plain.value and both.expandable.value == grows.value  # the defaults come first
    assert f"batch {plain.value} fits; {grows.value} with PYTORCH_ALLOC_CONF=expandable_segments:True" in repr(both)
    said = both.as_dict()
    assert said["configuration"] == "" and said["expandable"]["value"] == grows.value
    assert said["expandable"]["reserved"] == grows.reserved.reserved


class Pieces:
    """A witness's step that runs with some batches and not with others, whatever its peak."""

    witness, peak, peak_at, parts = "test", 1, "forward", {"activations": 1}

    def __init__(self, setup, dies):
        self.setup, self.dies = setup, dies

    def on(self, gpu, configuration, memory, steps, whole):
        played = eb.budget(
            eb.Model(name="m", layers=1, width=8, heads=1, vocabulary=8, positions=8), eb.Setup(batch=1, sequence=8)
        )
        return played.on("h200", configuration, 1 if self.setup.batch in self.dies else None)


@pytest.mark.parametrize(
    "dies, value, again",
    [
        ((), 40, None),
        (range(30, 41), 29, None),
        ((30, *range(32, 41)), 29, 31),
        ((28, *range(30, 41)), 27, 29),
        (range(1, 41), None, None),
    ],
)
def test_of_values_that_run_and_do_not_in_turn_it_names_the_largest_below_which_all_that_were_tried_run(
    dies, value, again
):
    class Peaks(Pieces):
        peak = property(lambda self: 1 if self.setup.batch <= 40 else 2**40)

    found = fit(GPT2, eb.Setup(), "rtx-4090", "batch", None, lambda model, setup, rounding: Peaks(setup, dies), "")
    assert (found.value, found.again) == (value, again)
    if again:
        assert f"batch {value + 1} fits by its peak" in found.why() and f"; batch {again} runs again" in found.why()


def test_where_the_reader_says_what_fragments_nothing_is_simulated():
    setup = eb.Setup(sequence=1024, precision="bf16-mixed")
    found = eb.fit(GPT2, setup, "rtx-4090", headroom=Headroom(fragmentation=0), configuration="")
    assert found.reserved is None and "Simulated" not in repr(found) and found.value == 27
    assert "batch 27 fits, by its peak alone" in repr(found)


def test_of_several_gpus_the_allocator_is_simulated_too():
    setup = eb.Setup(sequence=1024, precision="bf16-mixed", sharding="zero3", gpus=8)
    room = Headroom().room(eb.gpu("rtx-4090"), setup)
    found = eb.fit(XL, setup, "rtx-4090")
    assert found.reserved.reserved <= room and found.value <= found.expandable.value
    after = eb.budget(XL, setup.replace(batch=found.value + 1)).on("rtx-4090", "", room, whole=False)
    assert after.failed or found.next.peak > found.usable
    fewest = eb.fit(XL, setup.replace(batch=2), "rtx-4090", "gpus")
    room = Headroom().room(fewest.gpu, fewest.next.setup)
    fewer = eb.budget(XL, fewest.next.setup).on("rtx-4090", "", room, whole=False)
    assert (fewer.failed or fewest.next.peak > fewest.usable) and not fewest.reserved.failed and fewest.value > 1


def test_a_step_that_fits_by_its_peak_alone_does_not_fit():
    peak = eb.budget(GPT2, eb.Setup(batch=1, sequence=1024, precision="bf16-mixed"), ROUNDING).peak
    gpu = card(peak + 2**20)  # for tensors alone
    headroom = Headroom(driver=0, context=0, workspace=0)
    found = eb.fit(
        GPT2,
        eb.Setup(sequence=1024, precision="bf16-mixed"),
        gpu,
        headroom=Headroom(driver=0, context=0, workspace=0, fragmentation=0),
    )
    assert found.value == 1
    gpu = card(peak + 22 * 2**20 + 2**20)
    found = eb.fit(GPT2, eb.Setup(sequence=1024, precision="bf16-mixed"), gpu, headroom=headroom, configuration="")
    assert found.value is None and not found.fits and found.free >= 0 and found.reserved.failed
    assert found.why().startswith("batch 1 fits by its peak, and the allocator runs out")


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match=r"PYTORCH_ALLOC_CONF\.setting: 'grow'"):
        eb.fit(GPT2, eb.Setup(), "h200", configuration="grow:True")


def test_a_plan_says_what_the_allocator_makes_of_its_best():
    chosen = plan(GPT2, eb.Setup(batch=32, sequence=1024, precision="bf16-mixed"), "rtx-4090")
    played = chosen.reserved()
    again = eb.budget(GPT2, chosen.best.setup).on(
        "rtx-4090", "", Headroom().room(eb.gpu("rtx-4090")), steps=4, whole=False
    )
    assert (
        played.reserved == again.reserved and not played.failed and chosen.table().columns[-1] == "reserved, simulated"
    )
    assert units.text(played.reserved) in repr(chosen)
    shared = plan(GPT2, eb.Setup(batch=1, sequence=64, sharding="zero3", gpus=8), "h200")
    assert shared.best is shared.asked and shared.reserved().reserved > shared.best.peak


def test_a_set_of_switches_that_runs_out_in_pieces_is_not_the_best():
    """24 sequences fit by their peak, and not as PyTorch's defaults cut the memory."""
    setup = eb.Setup(batch=24, sequence=1024, precision="bf16-mixed")
    plain, grows = (plan(GPT2, setup, "rtx-4090", configuration=c) for c in ("", "expandable_segments:True"))
    assert plain.asked.peak <= plain.usable and plain.best is not plain.asked and grows.best is grows.asked
    assert "runs out, in pieces" in repr(plain) and not plain.reserved().failed


def test_over_a_mesh_it_is_the_heaviest_gpu_that_must_fit():
    llama = eb.model("llama-3.1-8b", code="reference")
    gpu, usable = "rtx-3090", eb.Headroom().usable(eb.gpu("rtx-3090"))
    piped = eb.Setup(gpus=8, sequence=1024, batch=1, accumulation=8, precision="bf16", mesh=eb.Mesh(pipeline=8))
    found = eb.fit(llama, piped, gpu)
    tops = [
        max(eb.budget(llama, piped.replace(batch=found.value + more), 512, rank).peak for rank in range(8))
        for more in (0, 1)
    ]
    assert tops[0] == found.peak <= usable < tops[1]


def test_what_a_mesh_divides_stays_divided():
    llama = eb.model("llama-3.1-8b", code="reference")
    setup = eb.Setup(
        gpus=8, sequence=1024, batch=1, precision="bf16-mixed", sharding="zero3", mesh=eb.Mesh(tensor=4), checkpointing="full"
    )  # fmt: skip
    longest = eb.fit(llama, setup, "rtx-4090", "sequence")
    assert longest.value % 4 == 0 and longest.next.setup.sequence == longest.value + 4
    fewest = eb.fit(llama, setup, "rtx-4090", "gpus")
    assert fewest.value % 4 == 0 and fewest.next.setup.gpus == fewest.value - 4
    assert f"{fewest.value - 4} GPUs are" in repr(fewest)
    assert "nearest GPU" in repr(eb.fit(llama, setup.replace(sequence=131072), "rtx-3060"))


def test_communicators_take_of_each_gpu_what_jobs_report():
    """Figures of the issues that `headroom.toml` names; and all of them are in the answer, as a row of its own."""
    h100, b200, plain = eb.gpu("h100-80gb"), eb.gpu("b200"), eb.Setup(sequence=1024, precision="bf16-mixed")
    mib = 2**20
    assert NEAR == 12 * mib and communicators(plain, h100) == []
    fsdp = plain.replace(sharding="zero3", gpus=8)
    assert [(one.axis, one.bytes(h100)) for one in communicators(fsdp, h100)] == [("data", (288 + 288 + 256) * mib)]
    assert communicators(fsdp, b200)[0].bytes(b200) == (576 + 384) * mib  # 576 without NVLink SHARP
    assert communicators(fsdp.replace(gpus=2), h100)[0].bytes(h100) == 288 * mib  # a tree of two is a ring
    assert Communicator("expert", 8, 8, "exchange").bytes(h100) == 2688 * mib
    meshed = eb.Setup(gpus=64, sharding="zero3", mesh=eb.Mesh(tensor=8, pipeline=2), accumulation=4, batch=1)
    assert [(one.axis, one.size, one.near) for one in communicators(meshed, h100)] == [
        ("tensor", 8, 8), ("data", 4, 1), ("pipeline", 2, 1),
    ]  # fmt: skip
    terms = {t.name: t for t in Headroom().terms(h100, fsdp)}
    assert terms["nccl"].bytes == 1000 * mib and "data 832.00 MiB, the first 168.00 MiB more" in terms["nccl"].reason
    assert (
        Headroom().usable(h100) - Headroom().usable(h100, fsdp)
        == 1000 * mib
        == Headroom().room(h100) - Headroom().room(h100, fsdp)
    )
    found = fit(XL, fsdp, h100)
    assert (
        found.usable == Headroom().usable(h100, fsdp)
        and "− nccl" in repr(found)
        and found.as_dict()["headroom"]["nccl"] == 1000 * mib
    )
    assert fit(XL, fsdp, h100, headroom=Headroom(nccl=30 * 2**30)).value < found.value
    assert plan(XL, fsdp, h100).usable == found.usable


def test_a_context_is_its_gpu_s():
    contexts = {
        name: Headroom().terms(eb.gpu(name))[1] for name in ("t4", "rtx-4090", "a100-80gb", "h100-80gb", "l40s")
    }
    assert [t.bytes // 2**20 for t in contexts.values()] == [144, 297, 512, 748, 616]
    assert "out-of-memory messages" in contexts["h100-80gb"].source and "largest of three" in contexts["l40s"].source


_UNDROPPED = {"precision": "bf16-mixed", "dropout": 0.0}
#: A border of what an H200 ran -> (model, sequence, setup).
BORDERS = {
    "gpt2 mixed": ("gpt2", 1024, _UNDROPPED),
    "gpt2 mixed expandable": ("gpt2", 1024, _UNDROPPED),
    "gpt2 eager mixed": ("gpt2", 1024, _UNDROPPED | {"attention": "eager"}),
    "llama-1b bf16": ("llama-3.2-1b", 4096, {"precision": "bf16"}),
    "llama-1b bf16 expandable": ("llama-3.2-1b", 4096, {"precision": "bf16"}),
    "llama-1b mixed full": ("llama-3.2-1b", 4096, {"precision": "bf16-mixed", "checkpointing": "full"}),
    "llama-1b mixed full expandable": ("llama-3.2-1b", 4096, {"precision": "bf16-mixed", "checkpointing": "full"}),
}


@pytest.mark.parametrize("border", BORDERS)
def test_a_gpu_ran_what_fits_and_not_the_next(border):
    """An H200 ran the largest batch of each border, and died of one sequence more."""
    measured = scripts()
    (name, sequence, said), setting = BORDERS[border], "expandable_segments:True" * ("expandable" in border)
    found = fit(eb.model(name, code="transformers"), eb.Setup(sequence=sequence, **said), "h200", configuration=setting)
    ran, died = (measured[f"{border} batch {found.value + more}"] for more in (0, 1))
    assert (ran["status"], died["status"]) == (0, 1)
    if border == "gpt2 mixed":  # the driver had 10 MiB less than was predicted
        assert "18.60 GiB asked of the driver, which has 9.51 GiB" in found.why()
        assert "Tried to allocate 18.60 GiB" in died["told"]["error"] and "9.50 GiB is free" in died["told"]["error"]
