"""Lets the tests here import the shared cases of the directory above."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
