"""The first page of the static edition: a step under the reader's hand, then the chapters by their questions."""

import re
from html import escape
from itertools import groupby
from pathlib import Path

import face
import nbformat
from contents import Entry
from worksheets import exercises, predictions

from everybyte import Setup, explore
from everybyte.common import files
from everybyte.explore.alone import embedded
from everybyte.teach import interview
from everybyte.teach.exercise import chapter_of, listed
from everybyte.teach.interviewing.room import page as rooms

#: What the page says; `{sign}`, `{explorer}` and `{map}` are HTML.
TEXT = """# Every Byte

```{{raw}} html
{sign}
```

**Where does the memory of a GPU go while it trains a transformer, and how do you know before you start?**

```{{raw}} html
{explorer}
```

This is one training step. Play it, point at it, or take it by the arrow keys. Each number is a formula that the book
derives, PyTorch agrees to the byte without a GPU, and so does an H200.

Does your model fit? <a href="config.html">Give its config.json</a>, and see the peak of its step without installing anything.
Did a job die? <a href="evidence.html">Give its memory snapshot, or its error</a>.

[Read from the beginning](notebooks/00_start_here.ipynb), take [the whole book in thirty minutes](notebooks/01_thirty_minutes.ipynb), [size your own model](notebooks/16_your_own_model.ipynb), find out
[why a job died](notebooks/43_out_of_memory.ipynb), or [install it](about.md#start). The evening before an interview, sit down in
<a href="interview.html">the interview room</a>.

## The chapters

```{{raw}} html
{map}
```
"""
#: In the browser: how many of a chapter's guesses the reader has made, and how many of its exercises with a card are solved.
TICKS = f"""<script type="module">
{files.text("everybyte.common", "keeping.js")}
const kept = {{ guessed: keeping("everybyte.guesses").all(), solved: keeping("everybyte.solved").all() }};
for (const card of document.querySelectorAll("[data-guessed]")) {{
  const ticks = Object.entries(kept).map(([what, made]) => {{
    const asked = card.dataset[what].split(" ").filter(Boolean);
    const done = asked.filter((id) => Object.hasOwn(made, id)).length;
    return done && (done === asked.length ? `\\u2713 ${{what}}` : `${{done}} of ${{asked.length}} ${{what}}`);
  }});
  card.querySelector(".everybyte-ticks").textContent = ticks.filter(Boolean).join(", ");
}}
</script>"""


#: The cases of the interview room: model, GPU, setup.
ROOMS = (
    ("llama-3.1-8b", "h100-80gb", None),
    ("llama-3.2-1b", "rtx-4090", Setup(batch=2, sequence=2048, precision="bf16-mixed")),
    ("gpt2-xl", "a100-40gb", Setup(batch=4, sequence=1024, precision="bf16-mixed")),
    ("mixtral-8x7b", "h200", None),
)


def room() -> str:
    """The interview room as a page of the edition."""
    return rooms([interview(*case) for case in ROOMS])


def page(entries: list[Entry], root: Path) -> str:
    """The first page, as Sphinx reads it. entries: the written chapters and labs, in order; root: of the repository."""
    parts = [
        f"<h3 data-part='{face.slug(part)}'>{escape(part or 'Start')}</h3>\n<div class='everybyte-cards' data-part='{face.slug(part)}'>\n{''.join(_card(e, root) for e in group)}</div>"
        for part, group in groupby(entries, lambda entry: entry.part)
    ]
    return TEXT.format(sign=face.sign(), explorer=embedded(explore.step()), map="\n".join([*parts, TICKS]))


def _card(entry, root):
    notebook = nbformat.read(root / entry.path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells)
    title = re.search(r"^# (.+)$", text, re.M)[1]
    minutes = re.search(r"^\*(\d+) minutes", text, re.M)
    guessed = " ".join(id for id, *_ in predictions(notebook))
    solved = " ".join(id for id, _ in exercises(notebook) if _on_card(listed(chapter_of(id))[id]))
    place = Path(entry.path).with_suffix(".html").as_posix()
    below = f"{minutes[1]} minutes" if minutes else ""
    return (
        f'<a class="everybyte-card" href="{place}" data-guessed="{escape(guessed)}" data-solved="{escape(solved)}"><b>{escape(title)}</b>'
        f'<span>{escape(entry.question)}</span><i>{below} <em class="everybyte-ticks"></em></i></a>\n'
    )


def _on_card(said):
    """Whether a page without a kernel marks an exercise, by what the bank says of it: one on a number."""
    return "call" not in said and said.get("accepts", "number") == "number"
