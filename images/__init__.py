"""Container images of slipway: Dockerfiles, and the tags their contents give them (tags.py)."""
