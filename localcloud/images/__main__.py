"""python -m localcloud.images list | tags | build [NAME…] [--registry HOST:PORT] [--no-push] | prune"""

from __future__ import annotations

import argparse
import sys

from images.tags import IMAGES, versions
from localcloud.images.build import LOCK_SECONDS, build, missing_in, reference, tags
from localcloud.images.buildah import PREFIX, Store
from localcloud.images.errors import ImageError
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.locks import hold
from localcloud.paths import InstanceError, instance


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def list_images(registry: str) -> None:
    """One line per image: its tag, whether and how large it is in the store, whether the registry has it."""
    store = Store()
    with hold(store.lock, wait=LOCK_SECONDS, log=say, what="the images' cache"):
        store.prepare()
        built = store.images()
    wanted = tags()
    try:
        missing = missing_in(registry, wanted)
    except ImageError:
        pushed = dict.fromkeys(wanted, "registry does not answer")
    else:
        pushed = {name: "missing" if name in missing else "there" for name in wanted}
    say(f"{'IMAGE':16}{'TAG':22}{'BUILT':12}REGISTRY {registry}")
    for name, tag in wanted.items():
        say(f"{name:16}{tag:22}{built.get(f'{PREFIX}/{name}:{tag}', 'no'):12}{pushed[name]}")


def prune() -> None:
    """Remove images of other tags than today's from the store."""
    store = Store()
    keep = {f"{PREFIX}/{reference(name, tag).partition('/')[2]}" for name, tag in tags().items()}
    keep.add(versions()["BASE"])
    with hold(store.lock, wait=LOCK_SECONDS, log=say, what="the images' cache"):
        store.prepare()
        old = sorted(set(store.images()) - keep)
        if old:
            store.remove(old)
    say("\n".join(f"removed {name}" for name in old) or "nothing to remove: the store holds today's images only")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m localcloud.images", description="Images of the local cloud.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="images, their tags, and where they are")
    commands.add_parser("tags", help="image and tag, one per line")
    making = commands.add_parser("build", help="build what is missing and push it")
    making.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(IMAGES)}; all by default")
    making.add_argument("--no-push", action="store_true", help="build only")
    for command in (listing, making):
        command.add_argument("--registry", metavar="HOST:PORT", help="instead of the local cloud's")
    commands.add_parser("prune", help="remove images of old tags from the store")
    chosen = parser.parse_args()
    try:
        if chosen.command == "tags":
            say("\n".join(f"{name} {tag}" for name, tag in tags().items()))
        elif chosen.command == "prune":
            prune()
        elif chosen.command == "list":
            list_images(chosen.registry or instance().registry)
        else:
            registry = None if chosen.no_push else chosen.registry or instance().registry
            wanted = tags(chosen.names or IMAGES)
            if registry:
                wanted = missing_in(registry, wanted)
            build(wanted, say, registry)
            say("done" if wanted else "nothing to do: the registry has every image")
    except (ImageError, ClusterError, InstanceError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
