"""Run jobs as tasks of Ray (the extra `cluster`), on this machine without a server or on a cluster by its address."""

import logging
import os
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from dqn_memory.runs.errors import UserError
from dqn_memory.study.runner import Job, JobResult, device_slots, run_job

STORE = 80 * 1024 * 1024  # bytes of Ray's object store; jobs and results are small


class Cluster:
    """Runs each job as a task of Ray, on any node with enough CPUs and GPUs for it.

    A job whose worker or node dies counts as killed. It continues elsewhere if it is submitted again.

    Raises:
        UserError: no cluster answers at the address, or no node is large enough for a run.
    """

    def __init__(self, address: str | None, workers: int | None, cpus: int, gpus: float) -> None:
        import ray

        self._ray = ray
        self._cpus, self._gpus, self._workers = cpus, gpus, workers
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        more: dict[str, Any] = {}
        if address is None:
            processors = None if workers is None else workers * cpus
            more = {"num_cpus": processors, "include_dashboard": False, "object_store_memory": STORE}
        try:
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **more)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"--address {address}: no Ray cluster answers there ({reason})") from None
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run_job)
        self._running: set[Any] = set()
        if self.slots() < 1:
            self.close()
            raise UserError(
                f"no node of the cluster has the {cpus} CPUs and {gpus:g} GPUs that a run of this study needs; give "
                "other --cpus and --gpus"
            )
        where = "this machine" if address is None else f"the cluster at {address}"
        self.describes = f"ray: Ray on {where}, {len(self._nodes())} node(s), {self.slots()} runs at once"

    def slots(self) -> int:
        slots = 0
        for node in self._nodes():
            fit = int(node.get("CPU", 0.0) / self._cpus)
            devices = ["gpu"] * int(node.get("GPU", 0.0))
            slots += min(fit, len(device_slots(devices, self._gpus))) if self._gpus else fit
        return slots if self._workers is None else min(slots, self._workers)

    def submit(self, job: Job) -> Future[JobResult]:
        # Ray hides no devices from tasks without a share of a GPU
        reference = self._task.remote(job if self._gpus else replace(job, devices=""))
        self._running.add(reference)
        ended: Future[JobResult] = Future()
        reference.future().add_done_callback(lambda future: ended.set_result(self._outcome(reference, future)))
        return ended

    def close(self) -> None:
        for reference in list(self._running):
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def _outcome(self, reference: Any, future: Future[JobResult]) -> JobResult:
        self._running.discard(reference)
        try:
            return future.result()
        except self._ray.exceptions.RayError as error:
            if isinstance(error, self._ray.exceptions.RayTaskError):  # a defect of this code, not of the run
                return JobResult("failed", str(error))
            return JobResult("killed", f"its worker was lost ({type(error).__name__})")

    def _nodes(self) -> list[dict[str, float]]:
        """List the resources of the nodes that are alive."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
