"""Two gradients are added in place where nobody else holds the first: found on every Python, though not all count an argument."""

from everybyte.theory.autograd import _ALONE, _holders
from everybyte.theory.tape import Storage
from everybyte.theory.tensors import Tensor


def test_who_holds_a_gradient_is_counted_as_this_python_counts():
    buffer = [None, Tensor((2,), (1,), Storage(None, ()), None)]
    assert _holders(buffer, 1) == _ALONE
    view = buffer[1].alias()
    assert _holders(buffer, 1) == (_ALONE[0], _ALONE[1] + 1)
    del view
    again = buffer[1]
    assert _holders(buffer, 1) == (_ALONE[0] + 1, _ALONE[1])
    del again
    assert _holders(buffer, 1) == _ALONE
