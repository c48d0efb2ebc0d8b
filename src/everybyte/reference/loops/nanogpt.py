"""nanoGPT's loop. Source: train.py: all of it stands in one `while`, so that all names outlive a step."""


def steps(run):
    """The next batch is made between forward and backward; logits live until the next forward has made others."""
    inputs = run.next_batch()
    while True:
        for left in run.turns():
            with run.averaging(not left):
                with run.autocast():
                    loss, *logits = run.forward(inputs)
                    loss = run.scaled(loss)
                inputs = run.next_batch()
                run.at("after_forward")
                run.backward(loss)
            run.at("after_backward")
        run.clip_norm()
        run.update()
        run.at("after_step")
        run.drop_gradients()
        run.end(loss)
        yield
