"""What a script does when it does not train: it evaluates, generates, saves, loads, resumes. Noted where it begins and ends."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path

from .others import instead

#: Module -> functions of it, or methods of a class in it, and what a script does there.
CALLED = {
    "torch": {"save": "saving", "load": "loading"},
    "torch.optim.optimizer": {"Optimizer.load_state_dict": "resuming"},
    "torch.distributed.checkpoint": {"save": "saving", "async_save": "saving", "load": "loading"},
    "safetensors.torch": {
        "save_file": "saving",
        "save_model": "saving",
        "load_file": "loading",
        "load_model": "loading",
    },
    "transformers.trainer": {"Trainer.evaluation_loop": "evaluation"},  # between passes it gathers what they said
    "transformers.modeling_utils": {"PreTrainedModel.from_pretrained": "loading"},
    "transformers.generation.utils": {"GenerationMixin.generate": "generation"},
}


def note_calls(module, stage: Callable[[str], AbstractContextManager]) -> None:
    """Have each of a module's functions above run within its stage."""
    for path, name in CALLED[module.__name__].items():
        *owner, last = path.split(".")
        holder = getattr(module, owner[0]) if owner else module
        if (found := vars(holder).get(last)) is not None:
            kind = type(found) if isinstance(found, classmethod | staticmethod) else None
            noted = _noted(found.__func__ if kind else found, stage, name)
            setattr(holder, last, kind(noted) if kind else noted)


def _noted(original, stage, name):
    @wraps(original)
    def noted(*args, **kwargs):
        if name == "resuming" and not _states(args, kwargs):  # only to have them where the weights are
            return original(*args, **kwargs)
        with stage(name):
            return original(*args, **kwargs)

    return noted


def _states(args, kwargs):
    """Whether an optimizer is given states."""
    said = args[1] if len(args) > 1 else kwargs.get("state_dict")
    return not isinstance(said, dict) or bool(said.get("state", True))


class Evaluation:
    """Whether a script evaluates: a module was told to by `eval()`, and the script has switched gradients off.

    Args:
        begin, end: called with its name as it does and does no longer.
    """

    def __init__(self, torch, begin: Callable[[str], None], end: Callable[[str], None]):
        self.begin, self.end, self.told, self.off, self.active = begin, end, False, [], False
        self.passed = 0  # the `id` of the last error that ended one
        self.torchs = str(Path(torch.__file__).parent)

        @instead(torch.nn.Module)
        def train(original, model, mode=True):
            found = original(model, mode)
            self.told = not mode
            self._look()
            return found

        for kind in (torch.no_grad, torch.inference_mode):
            self._watch(kind)

    def _watch(self, kind):
        enter, leave = kind.__enter__, kind.__exit__

        @wraps(enter)  # TorchScript, which compiles both, reads the source of what is wrapped
        def __enter__(context):
            self.off.append(self._of_script(sys._getframe(1)))
            self._look()
            return enter(context)

        @wraps(leave)
        def __exit__(context, *error):
            if self.active and len(error) > 1 and error[1] is not None:
                self.passed = id(error[1])
            self.off[-1:] = []
            self._look()
            return leave(context, *error)

        kind.__enter__, kind.__exit__ = __enter__, __exit__

    def _of_script(self, frame):
        """Whether it is not PyTorch itself that switches gradients off; by a decorator, of whose function."""
        if not frame.f_code.co_filename.startswith(self.torchs):
            return True
        func = frame.f_locals.get("func") if frame.f_code.co_name == "decorate_context" else None
        return func is not None and not str(func.__module__).startswith("torch.")

    def _look(self):
        active = self.told and any(self.off)
        if active != self.active:
            self.active = active
            (self.begin if active else self.end)("evaluation")
