"""`jupyter gpuslice demo`: a whole hub on this machine, for a look or as a check."""

from __future__ import annotations
