"""What does not go together, as rows of tables: the field, when its value does not go, why, what is allowed, and who answers.

A combination is allowed, or refused, by a row: `setups` has what does not go in any setup, `models` what does not go with a model,
`steps` what a witness does not run or derive. Whoever asks tries a table: `check(SETUP, setup)`, `broken(FORMULA, setup, model)`.
"""

from .engines import ENGINE, HYBRID, SERVED, STATELESS
from .models import MODEL, TENSOR
from .row import Rule, broken, check, first
from .setups import SETUP
from .steps import (
    ALIGNED,
    CLIPPED,
    CUT,
    DERIVED,
    FORMULA,
    GENERATING,
    GPU,
    LAYOUT,
    LETTERS,
    OBJECTIVE,
    PIPELINE,
    PLANNED,
    RESERVED,
    ROLLOUT,
    SCHEDULE,
    WHOLE,
)  # fmt: skip
