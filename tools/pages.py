"""The pages that the registry writes: notation, formulas, glossary, and the handout of formulas for one sheet."""

import inspect
import re
import textwrap
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import cache

import sympy

import everybyte as eb
from everybyte import draw, units
from everybyte.ask.choices import PRECISIONS
from everybyte.ask.setup import Setup
from everybyte.formulas import bindings, formula, registry
from everybyte.formulas.symbols import SYMBOLS
from everybyte.rules.formulas import refused
from everybyte.teach.terms import terms

#: What the formulas are shown for, beside their general form; those of a Llama, for a Llama.
GPT2, LLAMA = eb.model("gpt2"), eb.model("llama-2-7b", code="reference")
SHOWN = Setup(batch=8, sequence=1024, precision="bf16-mixed")
_OWNERS = {"model": "the model", "setup": "the setup", "": "you"}
_GENERATED = "*This page is written from the registry that the book computes with.*\n"


def _latex(expr) -> str:
    return sympy.latex(expr)


def _row(*cells) -> str:
    return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"


def _table(columns, rows) -> str:
    return "\n".join([_row(*columns), _row(*["---"] * len(columns)), *(_row(*r) for r in rows)]) + "\n"


def notation() -> str:
    """Every symbol: letter, name in code, meaning, unit, who decides it, and its value for GPT-2."""
    values = bindings(GPT2, SHOWN)
    text = f"# Notation\n\n{_GENERATED}\nA condition in square brackets is 1 where it holds, else 0. The last column is GPT-2 124M, {SHOWN.batch} sequences of {SHOWN.sequence:,} tokens, `{SHOWN.precision}`, {SHOWN.optimizer}.\n\n"
    for needs, title in (("model", "The model's"), ("setup", "The setup's"), ("", "Free")):
        own = [(s, f"{values[s.name]:,}" if s.name in values else "") for s in SYMBOLS.values() if s.needs == needs]
        rows = [(f"${_latex(s.symbol)}$", f"`{s.name}`", s.meaning, s.unit or "count", value) for s, value in own]
        text += f"## {title}\n\n" + _table(("symbol", "in code", "meaning", "unit", "GPT-2"), rows) + "\n"
    return text


def _shown(f) -> eb.Model:
    """The model that the formula is shown for: GPT-2, or a Llama where it was derived for one."""
    return LLAMA if refused(f.refuses, GPT2, SHOWN) else GPT2


def _value(f) -> str:
    """The formula's value for what is shown, in words; empty where a symbol is free."""
    if any(not s.needs and s.name != "rounding" for s in f.symbols):
        return ""
    model = _shown(f)
    if not _speaks(f):
        return ""
    name = {"gpt2": "GPT-2 124M", "llama-2-7b": "Llama 2 7B"}[model.name]
    return f"{name}: **{_amount(f.at(model, SHOWN, rounding=1), f.unit)}**. "


def _amount(value, unit) -> str:
    if unit == "B" and value >= 1024:
        return f"{value:,} B = {units.text(value)}"
    return f"{value:,} {unit}".strip()


def _speaks(f, setup=SHOWN) -> bool:
    """Whether the formula is for that setup: those of rings and of pipelines are for other ones."""
    try:
        f.check(_shown(f), setup)
    except ValueError:
        return False
    return True


@cache
def _form(f, setup=SHOWN):
    """The formula for a model and a setup: conditions and absent parts put in, the rest as letters; in general where it is for others."""
    if not {"model", "setup"} & {s.needs for s in f.symbols} or not _speaks(f, setup):
        return f.expr
    return f.for_model(_shown(f), setup)


def _entry(name, f, written) -> str:
    expr, form = f.expr, _form(f)
    text = f"({_label(name)})=\n### `{name}`: {f.title}\n\n$$ {_latex(form)} $$\n\n"
    text += _value(f)
    chapter = f"notebooks/{f.chapter}.ipynb"
    where = f"Derived in [{f.chapter}]({chapter}). " if chapter in written else ""
    text += f"{where}Source: {f.source}.\n\n"
    if f.assumptions:
        text += "Holds where: " + "; ".join(f.assumptions) + ".\n\n"
    if form != expr:
        where = ", ".join(f"${_latex(s.symbol)}$ {s.meaning}" for s in f.symbols)
        text += f"<details><summary>For every model and setup</summary>\n\n$$ {_latex(expr)} $$\n\n{where}.\n\n</details>\n\n"
    return text


def _label(name) -> str:
    return "formula-" + name.replace(".", "-").replace("_", "-")


def formulas(written: Container[str] = ()) -> str:
    """Every formula: for GPT-2 under one setup, its value there, its general form, assumptions and source.

    It links its chapter where that is among the `written`, by path.
    """
    every = registry()
    text = f"# Formulas\n\n{_GENERATED}\nEach is shown for a GPT-2 (or a Llama 2, where it is a Llama's) in `{SHOWN.precision}` with {SHOWN.optimizer} and flash attention, its switches put in; folded below it, for every model and setup. The numbers are for {SHOWN.batch} sequences of {SHOWN.sequence:,} tokens. Letters: [notation](notation.md).\n\n"
    text += _table(
        ("formula", "", "unit"), [(f"[`{n}`](#{_label(n)})", f.title, f.unit or "number") for n, f in every.items()]
    )
    chapters = sorted({f.chapter for f in every.values()})
    for chapter in chapters:
        text += f"\n## {chapter.replace('_', ' ')}\n\n"
        text += "".join(_entry(n, f, written) for n, f in every.items() if f.chapter == chapter)
    return text


def _fields(kind) -> Mapping[str, str]:
    """The documented attributes of a class: {names: meaning}."""
    said = inspect.getdoc(kind).split("Attributes:\n")[1].split("\n\n")[0]
    found = re.findall(r"^([\w, ]+): (.+?)(?=^[\w, ]+: |\Z)", textwrap.dedent(said), re.M | re.S)
    return {names: " ".join(meaning.split()) for names, meaning in found}


def glossary() -> str:
    """The words: the parts of memory, the fields of a model, a setup and a budget, the precisions, the formulas' names."""
    text = f"# Glossary\n\n{_GENERATED}\n## Terms\n\n"
    text += "".join(
        f"{t.name}\n: {t.meaning} [{t.chapter[:2]}](notebooks/{t.chapter}.ipynb)\n\n" for t in terms().values()
    )
    text += "## Parts of memory\n\n"
    text += _table(("part", "in figures"), [(f"`{n}`", p.label) for n, p in draw.PARTS.items()])
    columns = "name", "weights", "matrix products", "optimizer states", "master weights", "autocast", "loss scaling"
    rows = [
        (f"`{n}`", p.weights, p.compute, p.states, p.master or "none", *(("no", "yes")[is_] for is_ in (p.autocast, p.loss_scaling)))
        for n, p in PRECISIONS.items()
    ]  # fmt: skip
    text += "\n## Precisions\n\n" + _table(columns, rows)
    for title, kind in (("A setup", eb.Setup), ("A model", eb.Model), ("A budget", eb.Budget)):
        text += f"\n## {title}\n\n"
        text += "".join(
            f"{', '.join(f'`{n.strip()}`' for n in names.split(','))}\n: {meaning}\n\n"
            for names, meaning in _fields(kind).items()
        )
    text += "\n## Formulas\n\n"
    text += "".join(
        f"{f.title}\n: [`{n}`](formulas.md#{_label(n)})\n\n"
        for n, f in sorted(registry().items(), key=lambda i: i[1].title.lower())
    )
    return text


#: The handout's formulas, and under which attention and checkpointing each is meant.
HANDOUT = (
    ("parameters", {}), ("phase.rest", {}), ("bytes_per_parameter", {}), ("casts", {}), ("activations.block", {}),
    ("attention.scores", {"attention": "eager"}), ("checkpoint.inputs", {"checkpointing": "full"}), ("logits", {}),
    ("loss.logits", {}), ("phase.step", {}),
)  # fmt: skip


def _letters(formulas):
    """The letters of the formulas with their meaning, in the notation's order."""
    used = set().union(*(f.free_symbols for f in formulas))
    return ", ".join(f"${_latex(s.symbol)}$ {s.meaning}" for s in SYMBOLS.values() if s.symbol in used)


def handout() -> str:
    """The formulas to take home, on one sheet: for a GPT in fp32 and under bf16 autocast, with GPT-2's numbers."""
    rows, forms = [], []
    for name, switches in HANDOUT:
        f = formula(name)
        setups = [replace(SHOWN, precision=precision, **switches) for precision in ("fp32", SHOWN.precision)]
        found = [_form(f, setup) for setup in setups]
        forms += found
        said = ", ".join(f"{k} {v}" for k, v in switches.items())
        title = f.title + (f" ({said})" if said else "")
        cells = [f"${_latex(e)}$" for e in found]
        value = f.at(GPT2, setups[1], rounding=1)
        rows.append((title, *cells, units.text(value) if f.unit == "B" else f"{value:,}"))
    peak = formula("instant.nll_backward")
    worst = _form(peak)
    table = _table(
        ("bytes, if not said otherwise", "fp32", f"`{SHOWN.precision}`", f"GPT-2, `{SHOWN.precision}`"), rows
    )
    return (
        "# Every Byte on one sheet\n\n"
        f"A GPT with AdamW and flash attention, {SHOWN.batch} sequences of {SHOWN.sequence:,} tokens in the last column.\n\n"
        f"{table}\n"
        f"Where most of these steps peak, {peak.title}, `{SHOWN.precision}`:\n\n$$ {_latex(worst)} $$\n\n"
        f"For GPT-2: **{_amount(peak.at(GPT2, SHOWN, rounding=1), 'B')}**.\n\n"
        f"{_letters([*forms, worst])}. GiB is 1024³ bytes; GB, on a data sheet, is 10⁹.\n"
    )


def pages(written: Container[str] = ()) -> dict[str, str]:
    """The reference pages, by file name; they link the chapters that are `written`, by path."""
    return {
        "notation.md": notation(),
        "formulas.md": formulas(written),
        "glossary.md": glossary(),
        "handout.md": handout(),
    }
