"""The EKS API's own state: JSON documents in one file, written whole before a change is answered."""

from __future__ import annotations

import copy
import json
import os
import threading
from pathlib import Path
from typing import Any

Document = dict[str, Any]
KINDS = ("clusters", "nodegroups", "nodes", "addons", "entries", "pod_identities", "updates")


class Store:
    """Documents by kind and key. Keys of things inside a cluster are `<cluster>/<name>`.

    Fields whose names begin with "_" are the stand-in's own and never answered. The lock is moto's: checks look at
    both, and with two locks each side could wait for the other.
    """

    def __init__(self, path: Path, lock: threading.RLock) -> None:
        self.path = path
        self.lock = lock
        self._kinds: dict[str, dict[str, Document]] = {kind: {} for kind in KINDS}
        if path.exists():
            self._kinds.update(json.loads(path.read_text()))

    def get(self, kind: str, key: str) -> Document | None:
        with self.lock:
            return copy.deepcopy(self._kinds[kind].get(key))

    def all(self, kind: str, cluster: str = "") -> list[Document]:
        """Documents of a kind, of one cluster where that is given, in the order they were made."""
        with self.lock:
            items = self._kinds[kind].items()
            return [copy.deepcopy(d) for key, d in items if not cluster or key.startswith(f"{cluster}/")]

    def keys(self, kind: str, cluster: str) -> list[str]:
        with self.lock:
            return [key for key in self._kinds[kind] if key.startswith(f"{cluster}/")]

    def put(self, kind: str, key: str, document: Document) -> None:
        with self.lock:
            self._kinds[kind][key] = copy.deepcopy(document)
            self._save()

    def patch(self, kind: str, key: str, **fields: Any) -> Document | None:
        """Set fields of a document; returns the new document, or None when it is gone."""
        with self.lock:
            found = self._kinds[kind].get(key)
            if found is None:
                return None
            found.update(copy.deepcopy(fields))
            self._save()
            return copy.deepcopy(found)

    def remove(self, kind: str, *keys: str) -> None:
        with self.lock:
            for key in keys:
                self._kinds[kind].pop(key, None)
            self._save()

    def _save(self) -> None:
        temporary = self.path.with_suffix(".new")
        with temporary.open("w") as file:
            json.dump(self._kinds, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.path)


def public(document: Document) -> Document:
    """The document as the API answers it."""
    return {name: value for name, value in document.items() if not name.startswith("_")}
