"""Start of the provider's process: `python -m localcloud.kubernetes.provider [engine address]`."""

import sys

if __name__ == "__main__":
    try:
        from localcloud.kubernetes.provider.server import main
    except ModuleNotFoundError as error:
        sys.exit(
            f"pulumi-resource-kubernetes: {sys.executable} has no module {error.name}; start it by `./slipway run …`, "
            "or put a Python with requirements.txt installed first on PATH"
        )
    sys.exit(main(sys.argv[1:]))
