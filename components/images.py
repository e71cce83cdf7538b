"""The repositories of the container images, and the references by which pods name them."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.context import Context, asked, document_json
from components.region import domain
from components.settings.model import IMAGES
from components.settings.model import Images as ImageSettings
from images.tags import image_tag

LIFECYCLE = document_json(
    {
        "rules": [
            {
                "rulePriority": 1,
                "description": "what no tag names",
                "selection": {
                    "tagStatus": "untagged",
                    "countType": "sinceImagePushed",
                    "countUnit": "days",
                    "countNumber": 14,
                },
                "action": {"type": "expire"},
            },
            {
                "rulePriority": 2,
                "description": "all but the last hundred builds",
                "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 100},
                "action": {"type": "expire"},
            },
        ]
    }
)


@dataclass(frozen=True)
class Reference:
    """A full image reference in the parts that charts ask for. version: a tag, or a digest (`sha256:…`)."""

    repository: pulumi.Output[str]
    version: str

    def values(self) -> dict[str, pulumi.Input[str]]:
        """As a chart's `image` value."""
        return {"repository": self.repository, "digest" if ":" in self.version else "tag": self.version}


class Images(pulumi.ComponentResource):
    """ECR repositories slipway/<image> of the account, and a reference for each image.

    Tags are hashes of what an image is made of and can never be moved to another image (immutable), images are
    scanned when pushed and encrypted with the stack's key.
    """

    references: dict[str, Reference]
    registry: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        settings: ImageSettings,
        context: Context,
        key_arn: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slipway:aws:Images", name, asked(**settings.model_dump(mode="json", by_alias=True)), opts)
        if settings.registry is None:
            self.registry = pulumi.Output.concat(
                context.account, ".dkr.ecr.", context.region, ".", domain(context.region)
            )
            if settings.manage_repositories:
                for image in IMAGES:
                    self._repository(image, settings.delete_with_stack, key_arn)
        else:
            self.registry = pulumi.Output.from_input(settings.registry)
        self.references = {image: self._reference(image, settings.overrides.get(image)) for image in IMAGES}
        self.register_outputs({"registry": self.registry})

    def _reference(self, image: str, override: str | None) -> Reference:
        if override is None:
            return Reference(pulumi.Output.concat(self.registry, f"/slipway/{image}"), image_tag(image))
        repository, _, version = override.rpartition("@" if "@" in override else ":")
        return Reference(pulumi.Output.from_input(repository), version)

    def _repository(self, image: str, delete_with_stack: bool, key_arn: pulumi.Input[str]) -> None:
        repository = aws.ecr.Repository(
            image,
            name=f"slipway/{image}",
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[{"encryption_type": "KMS", "kms_key": key_arn}],
            force_delete=delete_with_stack,
            opts=pulumi.ResourceOptions(parent=self),
        )
        aws.ecr.LifecyclePolicy(
            image, repository=repository.name, policy=LIFECYCLE, opts=pulumi.ResourceOptions(parent=self)
        )
