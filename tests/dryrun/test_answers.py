"""What is remembered of PyTorch's kernels for tensors without data is what they say."""

import pytest
import torch

from everybyte.dryrun import answers

aten = torch.ops.aten


def empty(*size, dtype=torch.float32, device="meta"):
    return torch.empty(*size, dtype=dtype, device=device)


WIDE, HALF = empty(3, 5, 8), empty(3, 5, 8, dtype=torch.bfloat16)
ROW, STATS = empty(8), empty(3, 5, 1)
TARGET = empty(5, dtype=torch.int64)
ASKED = [
    (aten.addmm.default, (ROW, empty(5, 4), empty(8, 4).t())),
    (aten.gelu.default, (HALF.transpose(0, 2),), {"approximate": "tanh"}),
    (aten.gelu_backward.default, (WIDE, WIDE.transpose(0, 1).contiguous().transpose(0, 1))),
    (aten.native_dropout.default, (HALF, 0.1, True)),
    (aten.native_dropout_backward.default, (HALF, empty(3, 5, 8, dtype=torch.bool), 1.25)),
    (aten.native_layer_norm.default, (HALF, [8], empty(8, dtype=torch.bfloat16), None, 1e-5)),
    (aten.native_layer_norm_backward.default, (WIDE, WIDE, [8], STATS, STATS, ROW, ROW, [True, True, False])),
    (aten._softmax_backward_data.default, (WIDE, WIDE, -1, torch.float32)),
    (aten.mul.Tensor, (HALF, WIDE[:1])),
    (aten.mul.Tensor, (HALF, 2.0)),
    (aten.sum.dim_IntList, (HALF.transpose(0, 1), [0, 2], True)),
    (aten._foreach_sqrt.default, ([WIDE, HALF.transpose(0, 2), empty(0)],)),
    (aten._log_softmax.default, (HALF, 1, False)),
    (aten._log_softmax_backward_data.default, (WIDE, WIDE, 1, torch.float32)),
    (aten.add.Tensor, (HALF, WIDE[:1]), {"alpha": 2}),
    (aten.cat.default, ([HALF, HALF[:, :2]], 1)),
    (aten.clamp.default, (HALF.transpose(0, 1), None, 7.0)),
    (aten.cumsum.default, (HALF.transpose(0, 1), 1)),
    (aten.div.Scalar, (empty(3, dtype=torch.int64), 2)),
    (aten.div.Tensor, (HALF, WIDE)),
    (aten.empty_like.default, (HALF.transpose(0, 2),), {"memory_format": torch.preserve_format}),
    (aten.exp.default, (HALF.transpose(0, 2),)),
    (aten.floor_divide.default, (empty(3, dtype=torch.int64), 2)),
    (aten.mean.dim, (HALF, [-1], True), {"dtype": torch.float32}),
    (aten.mul.Scalar, (HALF.transpose(0, 2), 2)),
    (aten.neg.default, (HALF[:, ::2],)),
    (aten.nll_loss_backward.default, (empty(()), WIDE[0], TARGET, None, 1, -100, empty(()))),
    (aten.nll_loss_forward.default, (WIDE[0], TARGET, None, 1, -100)),
    (aten.pow.Tensor_Scalar, (empty(3, dtype=torch.int64), 2)),
    (aten.pow.Tensor_Scalar, (empty(3, dtype=torch.int64), 2.0)),
    (aten.rsqrt.default, (STATS.expand(3, 5, 8),)),
    (aten.sigmoid.default, (HALF,)),
    (aten.sigmoid_backward.default, (HALF.transpose(0, 1), HALF.transpose(0, 1))),
    (aten.silu.default, (HALF.transpose(0, 1),)),
    (aten.slice_backward.default, (HALF[:, :2], [3, 5, 8], 1, 0, 2, 1)),
    (aten.softplus.default, (HALF.transpose(0, 1), 1, 20)),
    (aten.softplus_backward.default, (WIDE, WIDE.transpose(0, 1).contiguous().transpose(0, 1), 1, 20)),
    (aten.sub.Tensor, (WIDE, HALF)),
    (aten.tanh_backward.default, (HALF, HALF)),
    (aten.zeros_like.default, (STATS.expand(3, 5, 8),), {"dtype": torch.bfloat16}),
]


def seen(out):
    out = (out,) if isinstance(out, torch.Tensor) else out
    return [
        t if t is None else (t.shape, t.stride(), t.dtype, t.device.type, t.untyped_storage().nbytes()) for t in out
    ]


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked[0].name())
def test_the_answer_is_pytorchs(asked):
    func, args, *kwargs = asked
    kwargs = kwargs[0] if kwargs else {}
    assert func in answers._SLOW
    for _ in range(2):  # asked, and remembered
        assert seen(answers.answer(func, args, kwargs)) == seen(func(*args, **kwargs))


def test_each_answer_is_a_tensor_of_its_own():
    func, args = ASKED[0]
    first, second = (answers.answer(func, args, {}) for _ in range(2))
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_every_slow_one_is_asked():
    assert {asked[0] for asked in ASKED} == answers._SLOW


def test_a_whole_number_is_another_question_than_the_same_as_a_fraction():
    whole = empty(3, dtype=torch.int64)
    assert [answers.answer(aten.pow.Tensor_Scalar, (whole, n), {}).dtype for n in (2, 2.0)] == [
        torch.int64,
        torch.float32,
    ]


def test_tensors_with_data_are_computed():
    assert answers.answer(aten.mul.Tensor, (torch.tensor([2.0]), torch.tensor([3.0])), {}).item() == 6
