"""The command line of the local cloud: `./slipway --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from localcloud import commands
from localcloud.console import Console, UserError
from localcloud.engine.errors import EngineError
from localcloud.images.errors import ImageError
from localcloud.kubernetes.errors import ClusterError
from localcloud.paths import InstanceError

EPILOG = """\
Several clouds can run side by side: SLIPWAY_INSTANCE names one, SLIPWAY_NET (a multiple of 3 from 60 to 240)
gives it addresses of its own. State is kept in /var/lib/slipway/<instance>, tools and images in ~/.cache/slipway.
SLIPWAY_KUBECONFIG names the kubeconfig of a cluster (kind, k3d) to use instead of one of its own, as
docs/existing-cluster.md says.
"""

# Errors whose text is written for the person at the terminal.
FOR_THE_USER = (UserError, InstanceError, ClusterError, EngineError, ImageError)

Handler = Callable[[argparse.Namespace, Console], int]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipway",
        description="Slurm on a local stand-in of AWS and EKS, by the same Pulumi program as in the cloud.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--plain", action="store_true", default=None, help="plain lines, as without a terminal")
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, handler: Handler, help_: str, stack: bool = False) -> argparse.ArgumentParser:
        command = sub.add_parser(name, help=help_, description=help_)
        command.set_defaults(handler=handler)
        if stack:
            command.add_argument("--stack", default="local", help="a file stacks/Pulumi.<stack>.yaml (default: local)")
        return command

    up = add("up", commands.up, "start everything, deploy the stack, run a job on two nodes", stack=True)
    up.add_argument("--no-job", action="store_true", help="stop when the cluster is ready, submit nothing")
    down = add("down", commands.down, "remove everything of this instance; the cache stays")
    down.add_argument("--abandon", action="store_true", help="leave what is in an existing cluster where it is")
    add("job", commands.job, "submit the two-node example job as an ordinary user and show its output")
    add("status", commands.status, "what runs and how much memory it uses")
    preview = add("preview", commands.preview, "what `up` would change, checked by the policy pack", stack=True)
    preview.add_argument("--diff", action="store_true", help="show the values that change")
    add("destroy", commands.destroy, "let the Pulumi program's own destroy remove the stack's resources", stack=True)
    add("shell", commands.shell, "a shell on the login node as the stack's first user")
    for name, help_ in {
        "node": "add, remove, stop, start, kill, cordon or drain a Kubernetes node (node --help)",
        "kubectl": "kubectl on this cluster",
        "helm": "helm on this cluster",
        "aws": "the AWS command line on this instance's stand-in",
        "engine": "the embedded Pulumi engine (engine --help)",
    }.items():
        sub.add_parser(name, help=help_, add_help=False).set_defaults(handler=commands.PASS_ON[name])
    logs = add("logs", commands.logs, "the log of one part; without a name, which parts there are")
    logs.add_argument("part", nargs="?", help="for example apiserver, aws, slurmctld")
    return parser


def main() -> int:
    parser = build_parser()
    # Programs that are passed on get their own arguments untouched, --help included.
    words = [word for word in sys.argv[1:] if word != "--plain"]
    plain = True if "--plain" in sys.argv[1:] or not sys.stdout.isatty() else None
    if words and words[0] in commands.PASS_ON:
        arguments = argparse.Namespace(rest=words[1:], handler=commands.PASS_ON[words[0]])
    else:
        arguments = parser.parse_args()
    console = Console(plain)
    try:
        code = int(arguments.handler(arguments, console))
        sys.stdout.flush()  # here, where a reader that has gone away (`… | head`) is no error
        return code
    except FOR_THE_USER as error:
        console.rich.print("[red]error:[/red]", end=" ")
        console.print(str(error))
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped. What was started stays; `make up` goes on from here, `make down` removes it.")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
