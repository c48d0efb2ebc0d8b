"""A dry run that is interrupted, anywhere, leaves nothing behind."""

import gc
import itertools
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import everybyte as eb
from everybyte.dryrun import autocast, interrupts
from everybyte.dryrun.tracker import Tracker
from everybyte.reference import GPT, Trainer
from everybyte.reference.gpt import Block

SMALL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=40)
SETUP = eb.Setup(batch=2, sequence=8, precision="fp16-mixed", dropout=0.1)


def raising(error):
    def raise_(*_, **__):
        raise error

    return raise_


def in_backward(monkeypatch, error):
    forward = Block.forward

    def hooked(self, x):
        y = forward(self, x)
        y.register_hook(raising(error))
        return y

    monkeypatch.setattr(Block, "forward", hooked)


PLACES = {
    "factory": lambda patch, error: patch.setattr(GPT, "__init__", raising(error)),
    "first update": lambda patch, error: patch.setattr(Trainer, "update", raising(error)),
    "forward": lambda patch, error: patch.setattr(Block, "forward", raising(error)),
    "autocast": lambda patch, error: patch.setattr(autocast.Autocast, "_lower", raising(error)),
    "backward": in_backward,
    "optimizer": lambda patch, error: patch.setattr(torch.optim.AdamW, "zero_grad", raising(error)),
}


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("number", [1, 2, 9])
def test_ctrl_c_beside_the_entering_of_a_mode_leaves_none(monkeypatch, state, method, presses, number):
    """The moment at which Python raises is chosen: after a mode came or went, before the `try` or the `with` that knows of it."""
    eb.dry_run(SMALL, SETUP)  # what is imported at first changes the filters of warnings
    original, times, before = getattr(TorchFunctionMode, method), itertools.count(1), state()

    def interrupted(self, *exception):
        result = original(self, *exception)
        if next(times) == number:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TorchFunctionMode, method, interrupted)
        eb.dry_run(SMALL, SETUP)
    assert _get_current_function_mode_stack() == [] and state() == before


def test_ctrl_c_at_any_time_leaves_nothing(state):
    """At times drawn anew; twenty thousand of them left nothing either."""
    model, before, draw = (
        eb.Model(name="tiny", layers=1, width=8, heads=1, vocabulary=11, positions=8),
        state(),
        random.Random(0),
    )
    setup = eb.Setup(batch=2, sequence=4, optimizer="sgd", precision="bf16-mixed", attention="eager")
    start, caught = time.perf_counter(), 0
    expected = eb.dry_run(model, setup).as_dict()
    takes = time.perf_counter() - start
    handler = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for _ in range(25):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, takes))
                eb.dry_run(model, setup)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                caught += 1
            assert _get_current_function_mode_stack() == [] and state() == before
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert caught > 3 and eb.dry_run(model, setup).as_dict() == expected


def test_a_module_that_is_lost_in_a_loop_can_be_stopped(monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE", 0.05)

    def loop(*_):
        for _ in range(100):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.01)
        pytest.fail("it was not stopped")

    monkeypatch.setattr(Block, "forward", loop)
    with pytest.raises(KeyboardInterrupt):
        eb.dry_run(SMALL, SETUP)
    assert _get_current_function_mode_stack() == [] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_stands_where_a_weight_stood_is_no_weight():
    """Addresses are used again: a cast of what is made there is an activation."""
    tracker = Tracker()
    with tracker:
        tracker.phase = "forward"
        # When an address comes again is C's allocator's own affair: the next weight stands where it is asked for sooner.
        for _ in range(50):
            weight = torch.empty(7, device="meta")
            tracker.assign(weight, "parameters", "a")
            address, kept = weight.untyped_storage()._cdata, []
            del weight
            while len(kept) < 1000 and not (kept and kept[-1].untyped_storage()._cdata == address):
                kept.append(torch.empty(7, device="meta"))
            if kept[-1].untyped_storage()._cdata == address:
                break
        assert kept[-1].untyped_storage()._cdata == address
        cast = kept[-1].to(torch.bfloat16)
        assert tracker.allocations[-1].bytes == cast.nbytes and tracker.allocations[-1].part == "activations"


def test_elsewhere_than_in_the_main_thread_nothing_waits():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(eb.dry_run, SMALL, SETUP).result().peak == eb.dry_run(SMALL, SETUP).peak
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.sampled(6)
@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("place", PLACES)
def test_an_interruption_leaves_no_global_state(monkeypatch, state, place, error, collecting):
    expected = eb.dry_run(SMALL, SETUP)
    (gc.enable if collecting else gc.disable)()
    try:
        before = state()
        with monkeypatch.context() as patch:
            PLACES[place](patch, error)
            with pytest.raises(error):
                eb.dry_run(SMALL, SETUP)
        assert state() == before
    finally:
        gc.enable()
    after = eb.dry_run(SMALL, SETUP)
    assert after.operations == expected.operations
    assert after.as_dict() == expected.as_dict()


def test_a_dry_run_leaves_no_global_state_and_draws_no_random_number(state):
    before = state()
    eb.dry_run(SMALL, SETUP)
    assert state() == before


def test_where_gradients_are_switched_off_the_dry_run_has_them_and_leaves_them_off():
    expected = eb.dry_run(SMALL, SETUP)
    with torch.no_grad():
        assert eb.dry_run(SMALL, SETUP).as_dict() == expected.as_dict()
        assert not torch.is_grad_enabled()


def test_a_default_data_type_of_the_callers_changes_nothing():
    expected = eb.dry_run(SMALL, SETUP)
    torch.set_default_dtype(torch.float64)
    try:
        found, there = (one.as_dict() for one in (eb.dry_run(SMALL, SETUP), expected))
        # but for the operation that made a weight, which is converted then
        alive = [[row[:3] for row in said.pop("alive")] for said in (found, there)]
        assert found == there and alive[0] == alive[1]
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_lives_is_gathered_by_owner():
    trace = eb.dry_run(eb.model("gpt2"), eb.Setup(batch=1, sequence=64), rounding=512)
    rows = trace.by_owner()
    assert sum(size for *_, size in rows) == trace.peak
    assert [size for *_, size in rows] == sorted((size for *_, size in rows), reverse=True)
    found = {(owner, part): (count, size) for owner, part, count, size in trace.by_owner(trace.marks["after_forward"])}
    assert found["blocks.*.mlp.up", "activations"] == (12, 12 * 64 * 4 * 768 * 4)
    assert found["blocks.*.mlp.up.weight", "parameters"] == (12, 12 * 4 * 768 * 768 * 4)
    assert not any(part == "activations" and owner.startswith("blocks") for owner, part, *_ in trace.by_owner(0))
