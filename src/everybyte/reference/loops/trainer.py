"""The loop of transformers' `Trainer`. Source: transformers/trainer.py, `_run_epoch`, `training_step` and `compute_loss`."""

from .accelerate import backward, called


def steps(run):
    """All batches of a step are there before its first forward, and until those of the next step are; so is the norm of gradients."""
    while True:
        batches = gathered(run)  # those before have gone only now
        total = 0.0
        for left in run.turns():
            inputs = batches[run.accumulation - 1 - left]
            with run.averaging(not left):
                loss = training_step(run, inputs)
            total = run.summed(total, loss)
            run.at("after_backward")
        norm = run.clip_norm()  # noqa: F841  it is logged
        run.update()
        run.at("after_step")
        run.drop_gradients()
        run.end(total)
        total = None
        yield


def gathered(run):
    return [run.next_batch() for _ in run.turns()]


def training_step(run, inputs):
    """`compute_loss` returns the loss alone: the logits go before backward."""
    loss = compute_loss(run, inputs)
    run.at("after_forward")
    backward(run, loss)
    return loss.detach()


def compute_loss(run, inputs):
    outputs = called(run, inputs)
    return outputs[0]
