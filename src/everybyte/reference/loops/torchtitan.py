"""torchtitan's loop. Source: torchtitan/trainer.py, `train_step` and `forward_backward_step`."""


def steps(run):
    """Gradients are dropped as the next step begins. Nothing else outlives a step."""
    while True:
        train_step(run)
        yield


def train_step(run):
    """The tokens of every batch stay until the step ends."""
    run.drop_gradients()
    tokens, losses = [], []
    for left in run.turns():
        inputs = run.next_batch()
        tokens.append(run.tokens(inputs))
        with run.averaging(not left):
            loss = forward_backward(run, inputs)
        losses.append(loss.detach())
        run.at("after_backward")
    norm = run.clip_norm()  # noqa: F841  it is logged
    run.update()
    run.at("after_step")
    loss = run.stacked(losses)
    run.end(loss)


def forward_backward(run, inputs):
    """The logits go before backward: `del pred`."""
    with run.autocast():
        loss_sum = run.forward(inputs)[0]
        loss = run.scaled(loss_sum)
    run.at("after_forward")
    run.backward(loss)
    return loss
