"""The Pulumi components of slipway: one concern per file, settings first (`components.settings`)."""
