"""A mesh is checked when it is made, survives text and JSON, and is refused by name where it is not derived."""

import json

import pytest

import everybyte as eb


def test_the_gpus_are_those_of_the_mesh_times_data():
    setup = eb.Setup(gpus=64, accumulation=2, sharding="zero3", mesh=eb.Mesh(pipeline=2, context=2, tensor=4))
    assert (setup.mesh.size, setup.data, setup.sharers, setup.shards) == (16, 4, 8, 8)
    assert setup.replace(mesh=eb.Mesh(pipeline=2, tensor=4), replicas=2).shards == 4


def test_without_data_there_is_nothing_to_average():
    assert not eb.Setup(gpus=8, mesh=eb.Mesh(tensor=8)).ddp
    assert eb.Setup(gpus=8, mesh=eb.Mesh(tensor=4)).ddp and eb.Setup(gpus=8, mesh=eb.Mesh(context=8)).ddp


def test_every_rank_has_its_place_with_tensor_innermost():
    mesh, data = eb.Mesh(pipeline=2, context=3, tensor=4), 5
    places = [mesh.rank(number, data) for number in range(mesh.size * data)]
    assert len({tuple(place.values()) for place in places}) == mesh.size * data
    assert places[1] == {"pipeline": 0, "data": 0, "context": 0, "tensor": 1}
    assert places[4]["context"] == 1 and places[12]["data"] == 1 and places[60]["pipeline"] == 1


def test_it_survives_json_and_text():
    setup = eb.Setup(gpus=32, mesh=eb.Mesh(pipeline=4, tensor=2, schedule="gpipe", sequence_parallel=False))
    assert eb.Setup(**json.loads(json.dumps(setup.as_dict()))) == setup
    assert eb.Mesh.read(str(setup.mesh)) == setup.mesh
    assert str(eb.Mesh()) == "none" and repr(eb.Mesh(tensor=8)) == "Mesh(tensor=8)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor": 0}, "Mesh.tensor: 0"),
        ({"pipeline": 2.0}, "Mesh.pipeline: 2.0"),
        ({"schedule": "1f1b "}, "Mesh.schedule: '1f1b '"),
        ({"schedule": "gpipe"}, "Mesh.schedule: 'gpipe' needs pipeline from 2 on, not 1; allowed: '1f1b'"),
        ({"loss_parallel": False}, "Mesh.loss_parallel: False needs tensor"),
        ({"rotation": "all-to-all"}, "Mesh.rotation: 'all-to-all' needs context"),
        ({"tensor": 2, "sequence_parallel": 1}, "Mesh.sequence_parallel: 1"),
    ],
)
def test_a_bad_mesh_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        eb.Mesh(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": 12, "mesh": eb.Mesh(tensor=8)}, "Setup.gpus: 12 are no multiple of the 8 .* allowed: .* 8 or 16"),
        ({"gpus": 4, "mesh": eb.Mesh(tensor=8)}, "Setup.gpus: 4 are no multiple .* as 8"),
        ({"gpus": 8, "mesh": eb.Mesh(expert=3)}, "Mesh.expert: 3 does not divide the 8 GPUs of data and context"),
        ({"gpus": 8, "mesh": "tensor=8"}, "Setup.mesh: 'tensor=8' is no Mesh"),
        ({"mesh": {"tensors": 8}}, "Mesh.field: 'tensors'"),
        (
            {"gpus": 8, "sharding": "zero3", "replicas": 4, "mesh": eb.Mesh(tensor=4)},
            "Setup.replicas: 4 does not divide the 2",
        ),
    ],
)
def test_a_setup_that_does_not_fit_its_mesh_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        eb.Setup(**fields)


def test_what_knows_no_mesh_refuses_it():
    setup = eb.Setup(batch=1, sequence=8, gpus=2, mesh=eb.Mesh(context=2))
    small = eb.Model(width=16, layers=1, heads=2, vocabulary=32, positions=8)
    for refuses in (eb.measure, eb.derive):
        with pytest.raises(ValueError, match="mesh context=2 is not derived"):
            refuses(small, setup)
    with pytest.raises(
        ValueError, match="rehearse.setup: mesh pipeline=2 is not rehearsed; allowed: tensor, context or expert alone"
    ):
        eb.rehearse(small.replace(layers=2), setup.replace(accumulation=2, mesh=eb.Mesh(pipeline=2)))
