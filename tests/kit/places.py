"""Paths in the checkout, for tests that read files and for the processes that they start."""

from __future__ import annotations

from pathlib import Path

KIT = Path(__file__).parent
ROOT = KIT.parents[1]
