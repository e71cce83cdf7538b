"""In-memory copy of the objects of one kind, with indexes that change in the same step as the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from slurm_operator.kube.objects import controller_of, labels_of
from slurm_operator.kube.resources import Key, Object

IndexFn = Callable[[Object], Iterable[str]]


def by_owner(obj: Object) -> Iterable[str]:
    """Index "by_owner": uid of the controlling owner."""
    owner = controller_of(obj)
    return (owner["uid"],) if owner else ()


def by_node(obj: Object) -> Iterable[str]:
    """Index "by_node": name of the Kubernetes node a pod is bound to."""
    node = (obj.get("spec") or {}).get("nodeName")
    return (node,) if node else ()


def label_index(label: str) -> tuple[str, IndexFn]:
    """Name and function of an index by the value of a label: `informer.add_index(*label_index("app"))`."""

    def values(obj: Object) -> Iterable[str]:
        value = labels_of(obj).get(label)
        return (value,) if value is not None else ()

    return label, values


class Store:
    """Objects by key and by index. Readers get the stored dicts themselves and must not change them."""

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._functions: dict[str, IndexFn] = {"by_owner": by_owner, "by_node": by_node}
        self._indexes: dict[str, dict[str, dict[Key, Object]]] = {name: {} for name in self._functions}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._objects)

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def list(self, namespace: str | None = None) -> list[Object]:
        if not namespace:
            return list(self._objects.values())
        return [obj for key, obj in self._objects.items() if key.namespace == namespace]

    def by_index(self, name: str, value: str) -> Sequence[Object]:
        """Objects with that value in the index. Raises KeyError for an index that does not exist."""
        return list(self._indexes[name].get(value, {}).values())

    def add_index(self, name: str, function: IndexFn) -> None:
        """Add an index, also over what is stored already. The same name twice must mean the same thing."""
        if name in self._functions:
            return
        self._functions[name] = function
        self._indexes[name] = {}
        for key, obj in self._objects.items():
            self._index(name, key, obj)

    def put(self, key: Key, obj: Object) -> Object | None:
        """Store `obj`; returns what was there before."""
        old = self.remove(key)
        self._objects[key] = obj
        for name in self._functions:
            self._index(name, key, obj)
        return old

    def remove(self, key: Key) -> Object | None:
        """Forget the object; returns it."""
        old = self._objects.pop(key, None)
        if old is not None:
            for name, function in self._functions.items():
                index = self._indexes[name]
                for value in function(old):
                    members = index.get(value)
                    if members is not None:
                        members.pop(key, None)
                        if not members:
                            del index[value]
        return old

    def _index(self, name: str, key: Key, obj: Object) -> None:
        index = self._indexes[name]
        for value in self._functions[name](obj):
            index.setdefault(value, {})[key] = obj
