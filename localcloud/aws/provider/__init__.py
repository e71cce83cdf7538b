"""Stands in for Pulumi's aws provider (pulumi-resource-aws 7.51), for use against localcloud.aws only.

Knows the resource types and properties that the tables in `services/` list; any other is an error that names it. It
does not read profiles, assume roles or look at any endpoint but AWS_ENDPOINT_URL.
"""

VERSION = "7.51.1"
