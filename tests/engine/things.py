"""The SDK of the tests' provider, imported by the test programs."""

from __future__ import annotations

from typing import Any

import pulumi


class Thing(pulumi.CustomResource):
    name: pulumi.Output[str]
    url: pulumi.Output[str]
    length: pulumi.Output[int]
    value: pulumi.Output[Any]
    password: pulumi.Output[str]

    def __init__(self, title: str, opts: pulumi.ResourceOptions | None = None, *, kind: str = "Thing", **props: Any):
        outputs = {"name": None, "url": None, "length": None, "value": None, "password": None}
        super().__init__(f"test:index:{kind}", title, {**outputs, **props}, opts)


class Group(pulumi.ComponentResource):
    def __init__(self, title: str, opts: pulumi.ResourceOptions | None = None, type_: str = "test:index:Group"):
        super().__init__(type_, title, {}, opts)


class Provider(pulumi.ProviderResource):
    def __init__(self, title: str, opts: pulumi.ResourceOptions | None = None, **props: Any):
        super().__init__("test", title, props, opts)
