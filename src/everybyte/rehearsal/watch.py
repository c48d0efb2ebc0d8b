"""Inside a rehearsed process: record what PyTorch's allocator does, without changing the script.

It starts when the script imports PyTorch. It writes a report as JSON after each optimizer step, when memory runs out, and at the
end of the process, which a killed process does not reach. It reads environment variables before the script runs, because the
script may change them.
"""

import atexit
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.metadata
import os
import signal
import sys
import threading
import time
import traceback

from ..common import files
from . import compiled, convolutions, history, host, nodes, others, owners, phases, ranks, reads, reports, sizes, stages

#: Variables: the folder of reports; optimizer steps until a process ends (0: never); the file of snapshots; ranks to pretend; the share of
#: rows that masks find; where routers send tokens.
REPORTS, STEPS = "EVERYBYTE_REHEARSAL_REPORTS", "EVERYBYTE_REHEARSAL_STEPS"
SNAPSHOTS, ALONE = "EVERYBYTE_REHEARSAL_SNAPSHOTS", "EVERYBYTE_REHEARSAL_ALONE"
ROWS, ROUTING = "EVERYBYTE_REHEARSAL_ROWS", "EVERYBYTE_REHEARSAL_ROUTING"
#: Variables: bytes of one of cuBLAS's workspaces; whether the report says to whom every block of the snapshot belongs.
WORKSPACE, OWNERS = "EVERYBYTE_REHEARSAL_WORKSPACE", "EVERYBYTE_REHEARSAL_OWNERS"
#: Variable: packages that `--with` asked for; and what else the report says the version of.
PACKAGES = "EVERYBYTE_REHEARSAL_PACKAGES"
NAMED = (
    "transformers", "accelerate", "peft", "trl", "bitsandbytes", "deepspeed", "lightning", "torchao", "torchtune", "triton",
)  # fmt: skip
#: The most events of the allocator's history; older ones are dropped.
EVENTS = 1_000_000
COUNTS = ("requested", "allocated", "reserved")
#: Said of a script that records a history itself.
RECORDS = "what the script says to `_record_memory_history` is not followed: its snapshots have this rehearsal's history, which is the whole"
#: The exit status of a process that a rehearsal could not follow.
LOST = 70


def wait_for_torch() -> None:
    """Watch PyTorch from the moment at which it is imported."""
    told = {name: value for name, value in os.environ.items() if name.startswith(("EVERYBYTE_REHEARSAL", "REHEARSAL_"))}
    told |= {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    then: dict[str, list] = {"torch": [lambda torch: start(torch, told)]}
    for name, hook in compiled.hooks().items():
        then[name] = [hook]
    for name, rule in (others.BY_RULE | ranks.BY_RULE).items():
        then[name] = [functools.partial(rule, note=_note)]
    for name in stages.CALLED.keys() - {"torch"}:
        then.setdefault(name, []).append(_note_calls)
    compiled.explain_missing_triton()
    sys.meta_path.insert(0, _Finder(then, {"torch": lambda: _tell_stubs(told)}))


def _note(said):
    if _watched:
        _watched.note(said)


def _note_calls(module):
    if _watched:
        stages.note_calls(module, _watched.stage)


def _tell_stubs(told):
    """Put variables that the script has removed back into C's environment, which the stubs read; `os.environ` stays as it is."""
    for name, value in told.items():
        if name.startswith("REHEARSAL_") and name not in os.environ:
            os.putenv(name, value)


class _Finder:
    """An import hook. first: called before a module is run; then: each is called with the module after its import."""

    def __init__(self, then, first):
        self.then, self.first = then, first

    def find_spec(self, name, path=None, target=None):
        if name not in self.then:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            # Now, and not at the first look: many ask whether a package is there, and do not import it.
            hooks = self.then.pop(name, ())
            self.first.get(name, lambda: None)()
            run(module)
            for hook in hooks:
                hook(module)

        spec.loader.exec_module = exec_module
        return spec


_watched = None


def start(torch, told: dict[str, str]) -> None:
    """Watch this process. `told`: environment variables as they were before the script ran."""
    global _watched
    if torch.version.cuda is None or not hasattr(torch._C, "_cuda_init"):
        return  # another PyTorch than the rehearsal's: nobody reports, and the launcher says so
    _watched = _Watched(torch, told)


class _Watched:
    """The record of one process."""

    def __init__(self, torch, told):
        self.torch, self.told, self.steps, self.notes = torch, told, 0, []
        self.pid, self.began, self.writing = os.getpid(), time.time_ns(), threading.Lock()
        self.marks, self.phases, self.standing, self.instant, self.oom, self.caught = {}, {}, {}, {}, None, None
        self.highest, self.backward_line, self.snapshot, self.pools = {}, None, None, 0
        self.stages, self.stopped, self.lost, self.ended = {}, None, None, False
        self.backward_runs, self.interrupted, self.leave = False, (0, None), os._exit
        self.stepped_within = False
        self.groups, self.stepping, self.host = {}, [], host.Host()
        self.last_step = int(told.get(STEPS) or 0)
        self.nodes = nodes.Nodes(torch, self._allocations)
        self.owners = owners.Owners(torch, int(told.get(WORKSPACE) or 0))
        if not nodes.tells(torch):
            self.note(nodes.UNTOLD)
        others.without_cudnn(torch)
        others.normal_without_a_look(torch)
        self._watch_recording()
        torch.cuda._lazy_call(self._begin)
        compiled.watch_graphs(torch)
        optimizers = importlib.import_module("torch.optim.optimizer")
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)
        self._watch_backward()
        self._watch_resets()
        self.backwards = 0
        self.spans = []  # (device, stage, `_counts` there when it began, and when it ended)
        self.open = {}  # stage -> (how deep, `_counts` when it began)
        self.evaluation = stages.Evaluation(torch, self._stage_begins, self._stage_ends)
        for module in (torch, optimizers):
            stages.note_calls(module, self.stage)
        if many := int(told.get(ALONE) or 0):
            ranks.alone(torch, many, self.note)
        elif torch.distributed.is_available():
            ranks.together(torch, self.note)
        self.lines = reads.Lines()
        self.attention = others.cudnn_attention(torch, lambda: self.note(others.ATTENDS))
        self.convolutions = convolutions.by_rule(torch, lambda: self.note(convolutions.SAID))
        worst = told.get(ROUTING) == sizes.ROUTINGS[1]
        self.sizes = sizes.Sizes(torch, float(told.get(ROWS) or 1), worst, self.lines.sized, self.note)
        self._watch_the_end()
        self._watch_failures()
        self._report()

    def note(self, said):
        if said not in self.notes:
            self.notes.append(said)

    def _watch_failures(self):
        """Note with what error the script ends, and where; and where it stood when it was asked to end, unless it listens itself."""

        @others.instead(sys)
        def excepthook(hook, kind, error, trace):
            if not self._of_memory(error):
                self._goes_on()
            elif self.oom:
                self.oom["died"] = True
            if self.oom is None and issubclass(kind, Exception):
                frames = history.told(traceback.walk_tb(trace))[::-1]
                missing = f": no {error.name}" if isinstance(error, ModuleNotFoundError) else ""
                self._ended_early(f"with {kind.__name__}{missing}", history.line(frames), self._doing(frames, error))
            hook(kind, error, trace)

        def asked(number, frame):
            self._ended_early(f"by {signal.Signals(number).name}", reads.here()[0])
            kept = self.highest
            self.highest = dict(kept)
            self._look(closely=False)
            self._report(final=True)  # a long history takes longer than whoever ends us may wait
            self.highest = kept
            self._at_the_end()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, asked)

    def _of_memory(self, error):
        """Whether an error is that there is no memory left, or came while one of these was handled."""
        while error is not None and not isinstance(error, self.torch.cuda.OutOfMemoryError):
            error = error.__cause__ or error.__context__
        return error is not None

    def _ended_early(self, how, line, phase=None):
        steps = f"{self.steps} optimizer step{'s' * (self.steps != 1)}"
        self.stopped = f"{how}{f' at {line}' if line else ''}{f', in {phase}' if phase else ''}, after {steps}"

    def _doing(self, frames, error=None):
        """The phase of a run in which these frames run, or did as an error passed them; None outside of all that are known."""
        passed = dict([(self.evaluation.passed, "evaluation"), self.interrupted])
        stage = passed.get(id(error)) if error else next(reversed(self.open), None)
        phase = "backward" if self.backward_runs else phases.running(frames)
        phase = phase or ("optimizer step" if self.stepping else None)
        phase = stage if stage and phase in (None, "forward") else phase
        return f"a collective{f' in {phase}' if phase else ''}" if phases.collective(frames) else phase

    @contextlib.contextmanager
    def _following(self):
        """A context for what is ours within the script: an error there is no error of the script's, and ends the process as lost."""
        try:
            yield
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            self.lost = f"{type(error).__name__}: {error} ({os.path.basename(at.filename)}:{at.lineno}), after {self.steps} optimizer steps"
            traceback.print_exc()
            self._report()
            self.leave(LOST)

    def _watch_the_end(self):
        """Report at Python's regular end, and at `os._exit`."""
        atexit.register(self._at_the_end)

        @others.instead(os)
        def _exit(leave, status):
            with contextlib.suppress(Exception):
                self._at_the_end()
            leave(status)

    def _watch_recording(self):
        """Keep the allocator's history whole, whatever the script records: there is one history a process."""
        self.record = self.torch.cuda.memory._record_memory_history

        @others.instead(self.torch.cuda.memory)
        def _record_memory_history(record, *args, **kwargs):
            self.note(RECORDS)

    def _begin(self):
        # Frames of allocations alone: to 2.12, PyTorch loses a Python exception that frees a tensor on its way, if it notes where.
        self.record(enabled="all", context="alloc", stacks="python", max_entries=EVENTS)
        self.torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)

    def _watch_backward(self):
        @others.instead(self.torch.autograd)
        def backward(original, *args, **kwargs):
            if self.backward_runs:  # a part that is recomputed
                return original(*args, **kwargs)
            with self._following():
                self._end_if_over()
                graph = self._backward_begins(args[0] if args else kwargs.get("tensors"))
            return self._backward(graph, original, args, kwargs)

        @others.instead(self.torch.autograd)
        def _engine_run_backward(original, roots, *args, **kwargs):
            """Of `torch.autograd.grad`, which calls it too. Where it is traced no kernel runs; where it is transformed, nodes are not told."""
            if self.backward_runs or self.torch._C._len_torch_dispatch_stack():
                return original(roots, *args, **kwargs)
            if self.torch._C._functorch.peek_interpreter_stack() is not None:
                with self.nodes.running(()):
                    return original(roots, *args, **kwargs)
            with self._following():
                graph = self._backward_begins(roots)
            return self._backward(graph, original, (roots, *args), kwargs)

    def _backward(self, graph, original, args, kwargs):
        """Run a backward pass; steps that optimizers take within it are one, at its end."""
        self.backward_runs = True
        try:
            with self.nodes.running(graph):
                graph.clear()
                found = original(*args, **kwargs)
        finally:
            self.backward_runs, within, self.stepped_within = False, self.stepped_within, False
        with self._following():
            self._mark("backward_done")
            self._goes_on()
            if within:
                self._stepped()
        return found

    def _goes_on(self):
        """After an out-of-memory error the script has done more: it caught it."""
        if self.oom:
            self.caught, self.oom = self.oom, None

    def _backward_begins(self, roots):
        """Mark it, and look at what is saved for it; return the graph's nodes."""
        self.backward_line, _ = reads.here()
        self.backwards += 1
        self._mark("after_forward")
        graph = nodes.graph(owners.tensors(self.torch, [*roots] if isinstance(roots, list | tuple) else [roots]))
        self.owners.saved(self._allocations(), nodes.saved(self.torch, graph))
        return graph

    def _watch_resets(self):
        """Read the peaks before the script resets them."""
        for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):

            @others.instead(self.torch.cuda, self.torch.cuda.memory, name=name)
            def reset(original, *args, **kwargs):
                with self._following():
                    self._look()
                return original(*args, **kwargs)

    def _devices(self):
        cuda = self.torch.cuda
        return range(cuda.device_count()) if cuda.is_initialized() else ()

    def _mark(self, moment):
        """Note a moment: live bytes, requested and in blocks, and how many allocations there have been."""
        for device in self._devices():
            stats = self.torch.cuda.memory_stats(device)
            if stats:
                self.marks.setdefault(device, []).append((moment, stats["allocation.all.allocated"]))
                if moment not in phases.WITHIN:
                    self.phases.setdefault(device, {})[moment] = stats["requested_bytes.all.current"]
                self.standing[device] = stats["allocated_bytes.all.current"]

    @contextlib.contextmanager
    def stage(self, name):
        """A context in which the script does what a stage is called by."""
        self._stage_begins(name)
        try:
            yield
        except BaseException as error:
            self.interrupted = id(error), name  # not the error itself, whose frames hold tensors
            raise
        finally:
            self._stage_ends(name)

    def _stage_begins(self, name):
        depth, began = self.open.get(name) or (0, self._counts())
        self.open[name] = depth + 1, began

    def _stage_ends(self, name):
        depth, began = self.open.pop(name)
        if depth > 1:
            self.open[name] = depth - 1, began
        else:
            self.spans += [(device, name, began.get(device, (0, 0)), now) for device, now in self._counts().items()]

    def _counts(self):
        """Of each device how many allocations there have been, and how many allocations and frees."""
        read = self.torch._C._cuda_memoryStats
        found = {device: read(device)["allocation"]["all"] for device in self._devices()}
        return {device: (one["allocated"], one["allocated"] + one["freed"]) for device, one in found.items()}

    def _allocations(self):
        """Of each device how many allocations there have been."""
        return {device: made for device, (made, _) in self._counts().items()}

    def _stages(self):
        """Device -> stage -> the most bytes that were requested within."""
        found, counts = {}, self._counts() if self.spans else {}
        snapshot = self.torch.cuda.memory._snapshot() if counts else None
        for device, (_, events) in counts.items():
            spans = [(name, first[1], last[1]) for where, name, first, last in self.spans if where == device]
            found[device] = history.peaks(snapshot, device, events, [span for span in spans if span[2]])
        return found

    def _before_step(self, optimizer, args, kwargs):
        if optimizer in self.stepping:  # its last step ended in an error
            del self.stepping[self.stepping.index(optimizer) :]
        self.stepping.append(optimizer)
        with self._following():
            if not self.backward_runs:
                self._end_if_over()
            self.owners.gradients(self._allocations(), optimizer)
            if len(self.stepping) == 1:
                self._mark("step_begins" if self.backward_runs else "after_backward")

    def _after_step(self, optimizer, args, kwargs):
        del self.stepping[self.stepping.index(optimizer) :]
        if self.stepping:
            return  # the step of another, around it, counts
        with self._following():
            if self.backward_runs:
                self._mark("step_ends")
                self.stepped_within = True
            else:
                self._stepped()

    def _stepped(self):
        """A step has ended."""
        self._mark("after_step")
        self.steps += 1
        self._goes_on()
        self.lines.stepped()
        self._look()
        self._report()
        if self.steps == self.last_step:  # what the script does until it begins another one is its own
            self._watch_forward()
        ranks.settled()

    def _watch_forward(self):
        """End the script at the next call of a module. PyTorch's hook for all modules would warn of itself where something is compiled."""

        @others.instead(self.torch.nn.Module)
        def __call__(original, module, *args, **kwargs):
            self._end_if_over()
            return original(module, *args, **kwargs)

    def _end_if_over(self):
        """End the script as it begins one more step than it was asked for."""
        if 0 < self.last_step <= self.steps and os.getpid() == self.pid:
            self.ended = True
            raise SystemExit(0)

    def _look(self, closely=True):
        """Update each device's peaks. Where requested bytes reached a new one, find out when, and what lived then, if `closely`."""
        for device in self._devices():
            stats = self.torch.cuda.memory_stats(device)
            if not stats:
                continue
            highest = self.highest.setdefault(device, dict.fromkeys((*COUNTS, "segments"), 0))
            found = {count: stats[f"{count}_bytes.all.peak"] for count in COUNTS}
            found["segments"] = stats["segment.all.peak"]
            more = found["requested"] > highest["requested"]
            self.highest[device] = {count: max(value, highest[count]) for count, value in found.items()}
            if closely and more and self.oom is None:
                self._remember(device, stats["allocation.all.allocated"], self.torch.cuda.memory._snapshot())

    def _remember(self, device, allocations, snapshot):
        memory = history.memory(snapshot, device)
        made = sum(action == "alloc" for action, *_ in memory.events)
        lost = allocations - made  # of the history's beginning, where it is long
        numbers, last, marks = history.numbers(memory, lost), memory.peak_event - 1, self.marks.get(device, [])
        number, frames = numbers.get(last, lost), memory.frames[last] or [] if last >= 0 else []
        at = phases.within(number, self._spans(device)) or phases.seen(phases.where(number, marks), frames)
        self.owners.all(self._allocations())
        passing = {n for event, n in numbers.items() if not memory.frames[event] and self.nodes.of(device, n)}
        parts = self.owners.parts(device, memory, numbers, passing)
        held = history.living(memory, numbers)
        self.instant[device] = {
            "live": memory.peak,
            "at": at,
            "step": phases.step(number, marks),
            **self._place(frames, at),
            **(self.nodes.of(device, number) or {} if at == "backward" else {}),
            "parts": owners.summed(((size, one) for size, _, one in held), parts),
            "held": history.holders(held, lambda one: self.nodes.of(device, one)),
        }
        if path := self.told.get(SNAPSHOTS):
            self._keep(snapshot, path)
        if self.told.get(OWNERS):
            self.instant[device]["history"] = {"lost": lost, "marks": [*marks], "parts": owners.listed(parts)}

    def _spans(self, device):
        """(stage, allocations by its begin, by its end) on a device; those that go on end with what comes next."""
        goes_on = [(name, began.get(device, (0, 0))[0], sys.maxsize) for name, (_, began) in self.open.items()]
        return [(name, first[0], last[0]) for where, name, first, last in self.spans if where == device] + goes_on

    def _place(self, frames, at):
        """Where Python was. Backward's thread runs none of the script's: then the line of the script that called it."""
        if self.backward_line and (not frames or at == "backward" and history.line(frames) is None):
            return {"line": self.backward_line, "inner": None, "call": "backward"}
        return {"line": history.line(frames), "inner": history.inner(frames), "call": history.call(frames)}

    def _keep(self, snapshot, path):
        """Write the snapshot as a pickle, the format of PyTorch's viewer. It is never read here."""
        import pickle

        if rank := self._rank():
            root, dot, end = path.rpartition(".")
            path = f"{root}.rank{rank}.{end}" if dot else f"{path}.rank{rank}"
        try:
            with files.whole(path) as file:
                pickle.dump(snapshot, file)
        except OSError as error:  # the script goes on as on a GPU
            self.notes.append(f"The snapshot is not in {path}: {error.strerror or error}.")
        else:
            self.snapshot = path

    def _out_of_memory(self, device, asked, total, free):
        """Called by PyTorch before it raises an out-of-memory error."""
        with self._following():
            snapshot = self.torch.cuda.memory._snapshot()
            events = [e for e in snapshot["device_traces"][device] if e["action"] == "oom"]
            frames = (events[-1].get("frames") if events else None) or []
            allocations = self.torch.cuda.memory_stats(device)["allocation.all.allocated"]
            running = history.told(traceback.walk_stack(sys._getframe()))
            at = self._doing(running) or phases.where(allocations + 1, self.marks.get(device, []))
            self.oom = {
                "device": device, "requested": events[-1]["size"] if events else asked, "total": total, "free": free, "at": at,
                **self._place(frames, at), **(self.nodes.of(device, allocations + 1) or {} if self.backward_runs else {}),
            }  # fmt: skip
            self._remember(device, allocations, snapshot)
            self._look()
            self._report()

    def _rank(self):
        """This process's rank, from a launcher or the script; 0 where there is none."""
        said = os.environ.get("RANK") or self.told.get("RANK") or "0"
        return int(said) if said.isdecimal() else 0

    def _at_the_end(self):
        if threading.current_thread() is threading.main_thread():
            self.lines.stop()
            with self._following():
                self._look()
                self.stages = self._stages()
            if compiled.captured():
                snapshot = self.torch.cuda.memory._snapshot()
                self.pools = sum(compiled.in_pools(snapshot, device) for device in self._devices())
            self._report(final=True)

    def _report(self, final=False):
        """Write the report in place of the last one. Where that fails, the script goes on."""
        if os.getpid() != self.pid and (self.torch.cuda._is_in_bad_fork() or not self.highest):
            return  # a fork that has no GPU of its own
        if self.writing.acquire(blocking=False):  # a thread that writes, or one that did when the process was forked
            try:
                reports.write(self.told[REPORTS], self.began, self._said(final))
            except OSError as error:
                self.notes.append(f"A report was not kept: {error.strerror or error}.")
            finally:
                self.writing.release()

    def _said(self, final):
        torch = self.torch
        failed = (self.oom or self.caught or {}).get("device")
        used = {d: h for d, h in self.highest.items() if h["reserved"] or d == failed}
        for name, group in ranks.talked(torch).items():
            known = self.groups.setdefault(name, group)
            known["does"] = sorted({*known["does"], *group["does"]})
        count, size = reads.unknown()
        peaks = [peak["step"] for peak in self.instant.values() if self.steps]
        return {
            "pid": os.getpid(), "rank": self._rank(), "argv": [str(word) for word in sys.argv], "torch": torch.__version__,
            "cuda": torch.version.cuda, "steps": self.steps, "backwards": self.backwards, "reads": count, "bytes_read": size, "streams": reads.stream_differences(), "read_at": self.lines.told(), "sized_at": self.lines.sized_at(),
            "oom": self.oom, "caught": self.caught, "stopped": self.stopped, "lost": self.lost, "snapshot": self.snapshot,
            "notes": self.notes + compiled.notes(peaks, self.pools), "groups": list(self.groups.values()), "host": self.host.look(),
            "ended": self.ended, "final": final,
            "devices": [
                {"device": d, "name": torch.cuda.get_device_name(d), "memory": torch.cuda.get_device_properties(d).total_memory,
                 **highest, "retries": torch.cuda.memory_stats(d)["num_alloc_retries"],
                 "phases": self.phases.get(d, {}), "standing": self.standing.get(d, 0), "stages": self.stages.get(d, {}), "peak": self.instant.get(d)}
                for d, highest in used.items()
            ],
            "packages": packages(self.told.get(PACKAGES, "").split()),
        }  # fmt: skip


def packages(asked: list[str]) -> dict[str, str]:
    """Package -> its version, of those that memory depends on and that were imported; and of those that were asked for."""
    found = {}
    for name in dict.fromkeys((*asked, *NAMED)):
        if name in asked or name in sys.modules:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                imported = name in sys.modules or _modules(name) & sys.modules.keys()
                found[name] = importlib.metadata.version(name) + ("" if imported else " (not imported)")
    return found


@functools.cache
def _modules(package):
    """What a package's files can be imported as. The list of them is long, and a report is written after each step."""
    return {path.parts[0].removesuffix(".py") for path in importlib.metadata.files(package) or ()}
