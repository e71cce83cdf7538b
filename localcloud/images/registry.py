"""Questions to a container registry over plain HTTP (OCI distribution API)."""

from __future__ import annotations

import http.client
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from localcloud.images.errors import ImageError

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json"
)
TIMEOUT_SECONDS = 5.0
PUBLIC_TIMEOUT_SECONDS = 3.0


def present(registry: str, references: list[str]) -> set[str]:
    """Those of `references` ("slipway/slurmd:26.05-0123456789ab") that the registry "host:port" has.

    Raises ImageError if the registry does not answer or answers something else than yes or no.
    """
    found = set()
    connection = http.client.HTTPConnection(registry, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/v2/")
        with connection.getresponse() as answer:
            answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise _no_registry(registry, answer)
        for reference in references:
            repository, _, tag = reference.rpartition(":")
            connection.request("HEAD", f"/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFESTS})
            with connection.getresponse() as answer:
                answer.read()
                if answer.status == http.HTTPStatus.OK:
                    found.add(reference)
                elif answer.status != http.HTTPStatus.NOT_FOUND:
                    raise _no_registry(registry, answer)
    except (OSError, http.client.HTTPException) as error:
        raise ImageError(
            f"the registry http://{registry} does not answer ({error}). `make up` starts it; to build without one: "
            "`./slipway run python -m localcloud.images build --no-push`"
        ) from None
    finally:
        connection.close()
    return found


def _no_registry(registry: str, answer: http.client.HTTPResponse) -> ImageError:
    return ImageError(
        f"http://{registry} answers {answer.status} {answer.reason}, as no container registry does. "
        "Does another program listen there? Then end it, or choose another address"
    )


def public_registry_answers(image: str) -> bool:
    """Whether the registry of a reference ("docker.io/library/debian:forky-slim") can be reached from here."""
    host = image.partition("/")[0]
    host = "registry-1.docker.io" if host == "docker.io" else host
    try:
        # Through a proxy if the environment names one, as buildah does.
        with urlopen(Request(f"https://{host}/v2/", method="HEAD"), timeout=PUBLIC_TIMEOUT_SECONDS):
            return True
    except HTTPError as error:
        return error.code == http.HTTPStatus.UNAUTHORIZED  # what a registry says to a stranger
    except (URLError, OSError, http.client.HTTPException):
        return False
