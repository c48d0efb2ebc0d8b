"""The loop of accelerate's examples. Sources: examples/nlp_example.py; `Accelerator.prepare_model` and `Accelerator.backward`."""


def steps(run):
    """Under autocast what a forward gives is widened to fp32, logits too, and stands in its `for` until the next has been."""
    while True:
        for left in run.turns():
            inputs = run.next_batch()
            with run.averaging(not left):
                outputs = called(run, inputs)
                loss = outputs[0]
                run.at("after_forward")
                backward(run, loss)
            run.at("after_backward")
        run.clip_norm()
        run.update()
        run.at("after_step")
        run.drop_gradients()
        run.end(loss)
        yield


def called(run, inputs, items=None):
    """A prepared model: its forward under autocast, then `convert_outputs_to_fp32`. items: what its loss is a sum over, if it is told."""
    with run.autocast():
        outputs = run.forward(inputs, items)
    return run.widened(outputs)


def backward(run, loss, batches=None):
    """`Accelerator.backward`: it divides by the number of batches, be it one, as it is for a `Trainer`'s."""
    loss = run.scaled(loss, batches)
    run.backward(loss)
