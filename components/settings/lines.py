"""Finds the line of a key in a stack's file, for error messages."""

from __future__ import annotations

from pathlib import Path

import yaml

PREFIX = "slipway:"


class LineFinder:
    """Lines of the keys of one stack file. Knows no lines if the file is absent or is no YAML."""

    def __init__(self, file: Path) -> None:
        try:
            root = yaml.compose(file.read_text(), Loader=yaml.SafeLoader)
        except (OSError, yaml.YAMLError):
            root = None
        self._config = _child(root, "config") if root else None

    def line(self, key: tuple[str | int, ...]) -> int | None:
        """Line (from 1) of `key` or, where that is not written, of the nearest part of it that is."""
        node, found = self._config, None
        for depth, part in enumerate(key):
            if isinstance(node, yaml.MappingNode):
                wanted = f"{PREFIX}{part}" if depth == 0 else part
                pair = next((pair for pair in node.value if pair[0].value == wanted), None)
                if pair is None:
                    break
                found, node = pair[0].start_mark.line + 1, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                found = node.start_mark.line + 1
            else:
                break
        return found


def _child(node: yaml.Node, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)
