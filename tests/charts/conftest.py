"""A real API server to which the charts' objects are shown."""

from __future__ import annotations

from tests.clusters import control_plane

__all__ = ["control_plane"]
