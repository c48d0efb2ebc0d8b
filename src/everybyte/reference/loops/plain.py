"""The loop of most scripts: `for batch in loader`, in three choices."""


def steps(run):
    """Forward, backward, optimizer's step.

    Where outputs are kept, the body stands in a `for`, and what it has names for lives until it is made again. Where they are dropped,
    it is a function, and nothing outlives it.
    """
    outputs = None
    while True:
        if run.zero_grad == "start":
            run.drop_gradients()
        total = 0.0
        for left in run.turns():
            inputs = run.next_batch()
            with run.averaging(not left):
                with run.autocast():
                    if run.outputs == "kept":
                        outputs = run.forward(inputs)
                        loss = outputs[0]
                    else:
                        loss = run.forward(inputs)[0]
                if run.zero_grad == "backward" and left == run.accumulation - 1:
                    run.drop_gradients()
                run.at("after_forward")
                share = run.scaled(loss) if run.accumulation > 1 else loss
                run.backward(share)
            total = run.summed(total, share)
            run.at("after_backward")
        run.clip_norm()
        run.update()
        run.at("after_step")
        if run.zero_grad == "end":
            run.drop_gradients()
        run.end(total)
        total = None
        if run.outputs == "dropped":
            inputs = loss = share = None
        yield
