"""The grader of *FlashAttention, Tile by Tile*. Notebooks use one name of it: `check`."""

import sys

# nbformat checks notebooks with jsonschema, which at import has this package build a grammar of internationalised addresses:
# 2.4 s of CPU in every process, for a format that no notebook's schema has. jsonschema does without where it is not there.
sys.modules.setdefault("rfc3987_syntax", None)

from autograder.student import CheckFailed, check  # noqa: E402

__all__ = ["CheckFailed", "check"]
