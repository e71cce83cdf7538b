"""The tables of resource types, one file for each AWS service."""
