"""Kubernetes: REST client, caches, work queue, lease and events."""
