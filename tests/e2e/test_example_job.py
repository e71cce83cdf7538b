"""The example job on a cluster so slow, or so fast, that the job has ended when it is looked at for the first time."""

from __future__ import annotations

from localcloud import slurm_job

QUEUED = "JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n7 debug hello alice PD 0:00 2 (None)"


class Login(slurm_job.Login):
    """Stands in for the login node: answers what Slurm says of a job that has ended; runs nothing."""

    def __init__(self) -> None:
        self.user = "alice"

    def run(self, command: str, stdin: str | None = None) -> str:
        if "sbatch" in command:
            return f"7\n{QUEUED}\n" if "squeue" in command else "7\n"
        if command.startswith("cat "):
            return "hello\n"
        return "JOBID PARTITION\nJobId=7 JobState=COMPLETED NodeList=debug-[0-1] StdOut=/home/alice/hello-7.out\n"


def test_the_queue_is_shown_though_the_job_has_ended_already() -> None:
    said: list[str] = []
    result = slurm_job.run_example(Login(), said.append)
    assert result.squeue == QUEUED
    assert (result.job_id, result.output) == (7, "hello\n")
