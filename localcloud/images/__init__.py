"""The images of the local cloud: built from images/ by buildah and pushed to the registry that stands in for ECR.

It does what a CI job does with `docker build` and `docker push`, and only for tags that the registry does not have.
What it does not do: other architectures than this machine's, signing, and scanning.
"""

from localcloud.images.build import ensure_images, local_image, stack_registry
from localcloud.images.errors import ImageError, Log

__all__ = ["ImageError", "Log", "ensure_images", "local_image", "stack_registry"]
