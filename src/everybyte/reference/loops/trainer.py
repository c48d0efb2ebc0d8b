"""The loop of transformers' `Trainer`. Source: transformers/trainer.py, `_run_epoch`, `training_step` and `compute_loss`."""

from .accelerate import backward, called


def steps(run):
    """All batches of a step are there before its first forward, and until those of the next step are; so is the norm of gradients.

    With transformers' models it counts the targets of all batches, and each loss is a sum over that.
    """
    logged = run.zero()  # `_tr_loss`
    batches = inputs = loss = norm = None  # noqa: F841
    while True:
        batches, items = samples(run)  # those before have gone only now
        run.clear(logged)
        for left in run.turns():
            inputs = batches[run.accumulation - 1 - left]
            with run.averaging(not left):
                loss = training_step(run, inputs, items)
            run.add(logged, loss)
            run.at("after_backward")
        norm = None
        norm = run.clip_norm()  # noqa: F841  it is logged
        run.update()
        run.at("after_step")
        run.drop_gradients()
        run.end(logged)
        yield


def samples(run):
    """`get_batch_samples`."""
    batches = []
    for _ in run.turns():
        batches.append(run.next_batch())
    return batches, run.items(batches)


def training_step(run, inputs, items):
    """The loss alone comes back: the logits go before backward."""
    loss = compute_loss(run, inputs, items)
    run.at("after_forward")
    if items is None:
        loss = run.scaled(loss)
    backward(run, loss, 1)
    return loss.detach()


def compute_loss(run, inputs, items):
    outputs = called(run, inputs, items)
    return outputs[0]
