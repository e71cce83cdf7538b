"""Runs controllers: settings, logging, metrics, health, leader election and the manager."""
