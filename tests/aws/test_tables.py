"""The provider's tables against the pulumi_aws package: no name is misspelt, every file fits."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pulumi_aws
import pytest

from localcloud.aws.provider import functions
from localcloud.aws.provider.model import Resource
from localcloud.aws.provider.registry import resources
from localcloud.aws.provider.schema import Prop

ROOT = Path(pulumi_aws.__file__).parent
GETTER = re.compile(r'@pulumi\.getter(?:\(name="(\w+)"\))?\n(?:    @.*\n)?    def (\w+)\(self\) -> (.*?):\n')


def _getters(source: str, name: str) -> dict[str, str]:
    """Wire name -> annotation of the getters of a class."""
    found = re.search(rf"^class {name}(?:\(.*?\))?:\n(.*?)(?=^@pulumi\.|^class |\Z)", source, re.M | re.S)
    assert found, f"pulumi_aws has no class {name}"
    return {getter[1] or getter[2]: getter[3] for getter in GETTER.finditer(found[1])}


def _source(token: str) -> tuple[str, str, str]:
    """(module, class name, source) of a type token aws:ec2/vpc:Vpc."""
    _, place, name = token.split(":")
    module, file = place.split("/")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", file).lower()
    return module, name, (ROOT / module / f"{snake}.py").read_text()


def _fields(module: str, props: Mapping[str, Prop], getters: Mapping[str, str], path: str) -> Iterator[str]:
    for name, prop in props.items():
        if name not in getters:
            yield f"{path}{name}"
        elif prop.fields:
            inner = re.search(r"'(?:_\w+\.)?(\w+)Args'", getters[name])
            assert inner, f"{path}{name}: {getters[name]} is no object"
            source = (ROOT / module / "_inputs.py").read_text()
            yield from _fields(module, prop.fields, _getters(source, f"{inner[1]}Args"), f"{path}{name}.")


@pytest.mark.parametrize("token", sorted(resources()))
def test_every_property_is_one_of_pulumi_aws(token: str) -> None:
    module, name, source = _source(token)
    assert f"'{token}'" in source
    resource: Resource = resources()[token]
    assert list(_fields(module, resource.props, _getters(source, f"{name}Args"), "")) == []
    outputs = _getters(source, name)
    assert [output for output in resource.outputs if output not in outputs] == []
    assert [name for name in resource.unique if name not in resource.props] == []
    required = {n for n, annotation in _getters(source, f"{name}Args").items() if "Optional" not in annotation}
    assert required <= set(resource.props)


@pytest.mark.parametrize("token", sorted(functions.FUNCTIONS))
def test_every_function_is_one_of_pulumi_aws(token: str) -> None:
    place = token.split(":")[1].split("/")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", place[-1]).lower()
    module: Any = importlib.import_module("pulumi_aws" if place[0] == "index" else f"pulumi_aws.{place[0]}")
    assert f"'{token}'" in inspect.getsource(getattr(module, snake))
