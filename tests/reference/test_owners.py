"""Muon's matrices made whole on one GPU each: real processes train as one does with PyTorch's own Muon, to the last bit."""

from pathlib import Path

from processes import loaded, together

SCRIPT = Path(__file__).with_name("owners.py")
owners = loaded(SCRIPT)


def test_each_matrix_is_made_orthogonal_once_and_the_losses_are_those_of_one_process():
    """All have the same tokens, so that sums are exact; of 12 matrices, three of a shape, each GPU has its own."""
    alone, _ = owners.train(owners.SETUP)
    assert alone[0] - alone[-1] > 1e-3
    ranks = together(SCRIPT, 2, *owners.WAYS)
    assert all(rank[way][0] == alone for rank in ranks for way in owners.WAYS)
    made = {way: [rank[way][1] for rank in ranks] for way in owners.WAYS}
    assert made == {"each": [12, 12], "owner": [8, 4], "all-to-all": [8, 4]}
