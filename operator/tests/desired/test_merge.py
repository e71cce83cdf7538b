"""Overlaying what users write."""

from __future__ import annotations

from typing import Any

import pytest
from slurm_operator.desired.merge import overlay


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": 1}, {"a": None}, {}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
        ),
        (
            {"volumeMounts": [{"name": "x", "mountPath": "/x"}]},
            {"volumeMounts": [{"name": "y", "mountPath": "/x"}, {"name": "z", "mountPath": "/z"}]},
            {"volumeMounts": [{"name": "y", "mountPath": "/x"}, {"name": "z", "mountPath": "/z"}]},
        ),
        ({"tolerations": [{"key": 1}]}, {"tolerations": [{"key": 2}]}, {"tolerations": [{"key": 1}, {"key": 2}]}),
        ({"capabilities": {"add": ["KILL"]}}, {"capabilities": {"add": ["SYS_ADMIN", "KILL"]}},
         {"capabilities": {"add": ["KILL", "SYS_ADMIN"]}}),
        ({"ports": [{"containerPort": 1, "name": "a"}]},
         {"ports": [{"containerPort": 1, "protocol": "TCP", "name": "b"}]},
         {"ports": [{"containerPort": 1, "protocol": "TCP", "name": "b"}]}),
    ],
)  # fmt: skip
def test_overlay(base: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]) -> None:
    before = repr((base, patch))
    assert overlay(base, patch) == result
    assert repr((base, patch)) == before


def test_ports_of_a_service_go_by_port() -> None:
    base = {"ports": [{"port": 22, "targetPort": 22}]}
    patch = {"ports": [{"port": 22, "nodePort": 30022}]}
    assert overlay(base, patch, service=True) == {"ports": [{"port": 22, "targetPort": 22, "nodePort": 30022}]}
