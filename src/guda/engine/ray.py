"""Runs tasks on a Ray cluster: the same pure functions of the run folder, on every node that mounts it.

Ray places tasks by the resources they declare and runs one again when its worker or node is lost; what was published
before the loss is found and not done again. Errors of the user are not retried. Nothing travels through Ray but the
task's name and arguments: models, pictures and scores go through the run folder.

A worker gets one thread for each CPU of its task, so with the default of one the files are byte-identical to the local
engine's. Where a task has two GPUs or more, a training (`task.trains`) runs in one process for each of them through
accelerate (engine/torchrun.py); that equals a training on one device up to rounding.

Without an address a cluster of this machine is started and ends with the driver, however that ends. It listens on
loopback alone and answers only to a token of its own, because whoever can talk to Ray can run code. On a cluster that
was there before, Ray ends the tasks of a driver that is gone.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import secrets
import socket
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from guda.engine.loop import Watcher, run_in
from guda.engine.processes import default_workers
from guda.engine.torchrun import execute_multi_gpu
from guda.errors import GudaError
from guda.files import library_versions
from guda.run.run import Run, local_folder, remote
from guda.run.task import Task, execute

RETRIES = 10  # of a task whose worker or node died; a task that needs more memory than there is dies every time

REFRESH = 5.0  # seconds between looks at how large the cluster is

JOINING = 30.0  # seconds that the nodes of a cluster may take to appear

PATIENCE = 90.0  # seconds until what one node wrote is seen by another: network file systems remember what was missing

FORWARDED = ("GUDA_DEVICE", "HF_HUB_OFFLINE")  # settings of the driver that decide what a task computes

ENVIRONMENT = {  # of a cluster that is started here; what the user set stays
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's own 15 starves tasks on a machine that does anything else
    "RAY_raylet_start_wait_time_s": "300",  # a busy machine takes long to start it
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_task_oom_retries": "10",  # of a task that Ray's memory monitor ends; Ray's own default never gives up
}


LOCAL, LOOPBACK = "local", "127.0.0.1"  # Ray's word for a cluster that is started here, and where that listens


@dataclass(frozen=True)
class RayOptions:
    """Where tasks run and what each may take."""

    address: str | None = None  # HOST:PORT or auto; None: $RAY_ADDRESS, else a cluster of this machine alone
    workers: int | None = None  # tasks at the same time; None: as many as fit
    cpus: float = 1.0  # of each task
    gpus: float | None = None  # of each task, also a fraction; None: one where the cluster has any
    memory: float | None = None  # of each task, GB

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus > 1 and self.gpus != int(self.gpus):
            raise GudaError(
                "gpus-per-task-invalid",
                f"--gpus-per-task {self.gpus:g} is neither a share of one GPU nor a whole number",
            )
        if (address := self.address or os.environ.get("RAY_ADDRESS") or "").startswith("ray://"):
            raise GudaError(
                "ray-address-client",
                f"{address} is a Ray client's address; start guda on a node of the cluster and give HOST:PORT",
            )

    @property
    def where(self) -> str:
        """What Ray takes as an address."""
        return self.address or os.environ.get("RAY_ADDRESS") or LOCAL


def import_ray(address: str | None = None) -> Any:
    """Import Ray with an environment in which it is quiet and makes no network requests."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address == LOCAL and "ray" not in sys.modules:  # Ray looks when it is imported, and its processes inherit
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # as on these systems by default: loopback is the address
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if os.environ["RAY_AUTH_MODE"] == "token":  # Ray's own would be kept in a file of the home folder
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise GudaError("package-missing", '--engine ray needs Ray; install it with: pip install "guda[ray]"') from None


class RayWorkers:
    """Ray's workers as a pool. Stays connected between calls, because a race has many rounds."""

    def __init__(self, options: RayOptions) -> None:
        self.options = options
        self._ray: Any = None
        self._function: Any = None
        self._refs: dict[Future[float], Any] = {}
        self._slots, self._asked = 0, float("-inf")

    def connect(self) -> None:
        if self._ray is not None:
            return
        ray = import_ray(self.options.where)
        if not ray.is_initialized():
            _init(ray, self.options)
        gpus = self.options.gpus
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU", 0) and os.environ.get("GUDA_DEVICE") != "cpu" else 0.0
        memory = self.options.memory
        asked = {"num_cpus": self.options.cpus, "num_gpus": gpus}
        asked |= {} if memory is None else {"memory": int(memory * 1e9)}
        self._wanted = {"CPU": self.options.cpus, "GPU": gpus, "memory": (memory or 0.0) * 1e9}
        deadline = time.monotonic() + JOINING
        while self._fitting(ray) == 0:
            if time.monotonic() > deadline:
                raise GudaError(
                    "ray-resources-missing",
                    f"no node of the Ray cluster has {_words(self._wanted)} for a task; "
                    "ask for less, or add such a node",
                )
            time.sleep(0.5)
        # the default number of retries also counts for errors of Ray itself, never for exceptions of the task
        options = {"max_retries": RETRIES, "retry_exceptions": False, "name": "guda"}
        self._function = ray.remote(run_on_worker).options(**asked, **options)
        self._settings = {
            "threads": max(1, int(self.options.cpus)),
            "processes": int(gpus) if gpus >= 2 else 1,
            "versions": _versions(),
            "cwd": os.getcwd(),
            "environ": {k: os.environ[k] for k in FORWARDED if k in os.environ},
        }
        self._ray = ray

    @property
    def n(self) -> int:
        """A few more than fit: no worker waits for the driver, and a cluster that can grow sees why it should."""
        self.connect()
        now = time.monotonic()
        if now - self._asked > REFRESH:
            self._slots, self._asked = self._fitting(self._ray), now
            if self._slots == 0 and self.options.where == LOCAL:  # no other node will come: Ray would wait for ever
                raise GudaError(
                    "ray-node-lost",
                    "the Ray node of this machine has died (out of memory? look into /tmp/ray/session_latest); "
                    "nothing finished is lost: run the same command again",
                )
        most = self._slots + max(1, self._slots // 4)
        return max(1, most if self.options.workers is None else min(most, self.options.workers))

    def _fitting(self, ray: Any) -> int:
        """Tasks that fit on the nodes there are."""
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = {k: v for k, v in self._wanted.items() if v > 0}
        return sum(int(min(have.get(k, 0.0) / v + 1e-9 for k, v in wanted.items())) for have in alive)

    def submit(self, root: str, task: Task) -> Future[float]:
        self.connect()
        ref = self._function.remote(root if remote(root) else os.path.abspath(root), task, self._settings)
        future: Future[float] = ref.future()
        self._refs[future] = ref
        return future

    def collect(self, run: Run, task: Task, future: Future[float]) -> None:
        self._refs.pop(future, None)
        errors = self._ray.exceptions
        try:
            future.result()
        except errors.RayTaskError as e:
            if isinstance(e.cause, GudaError):
                raise e.cause from None
            raise
        except errors.RayError as e:
            said = next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)
            raise GudaError(
                "ray-task-failed",
                f"Ray gave up on {task.name!r} after {RETRIES} retries ({said[:200]}); "
                "nothing finished is lost: run the same command again",
            ) from None
        run.path(task.heartbeat).unlink(missing_ok=True)  # of a worker that died after it had published
        run.refresh()
        if missing := _unseen(run, task.makes):
            raise GudaError(
                "ray-folder-not-shared",
                f"{task.name!r} ended on another node, but {run.path(missing)} is not here; "
                "every node must mount the same run folder",
            )

    def close(self) -> None:
        for ref in self._refs.values():
            try:
                self._ray.cancel(ref, force=True)
            except Exception:  # it ended meanwhile, or the cluster is gone
                continue
        self._refs.clear()


def run_on_ray(run: Run, tasks: list[Task], options: RayOptions | RayWorkers, watch: Watcher | None = None) -> int:
    """Run what is not done yet; returns how many tasks that were. The first failure stops the rest."""
    return run_in(options if isinstance(options, RayWorkers) else RayWorkers(options), run, tasks, watch)


def _init(ray: Any, options: RayOptions) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = options.where
    if address == LOCAL:
        cpus = max(default_workers(), math.ceil(options.cpus)) if options.workers is None else math.ceil(
            options.workers * options.cpus
        )  # fmt: skip
        # the smallest store that Ray takes: nothing but numbers goes through it
        quiet |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 80 * 1024**2}
        quiet |= {"_node_ip_address": LOOPBACK}  # where all of its processes listen
    try:
        ray.init(address=address, **quiet)
    except ConnectionError:
        raise GudaError(
            "ray-cluster-unreachable",
            f"no Ray cluster answers at {address!r}; start one with: ray start --head, or leave --address",
        ) from None
    except Exception as e:
        said = " ".join(str(e).split())[:200]
        raise GudaError(
            "ray-start-failed", f"Ray did not start ({type(e).__name__}: {said}); look into /tmp/ray/session_latest"
        ) from None


def _words(wanted: dict[str, float]) -> str:
    cpus, gpus, memory = wanted["CPU"], wanted["GPU"], wanted["memory"] / 1e9
    parts = [f"{cpus:g} CPUs", *([f"{gpus:g} GPUs"] if gpus else []), *([f"{memory:g} GB"] if memory else [])]
    return " and ".join(parts)


# ---- on a worker -----------------------------------------------------------------------------------------------------
def run_on_worker(root: str, task: Task, settings: dict[str, Any]) -> float:
    """One task in a worker of the cluster; returns its seconds, 0 where it was done already."""
    _prepare(settings["threads"], tuple(settings["environ"].items()))
    if (found := _versions()) != settings["versions"]:
        raise GudaError(
            "ray-versions-differ",
            f"node {socket.gethostname()} has {_pairs(found)}, the driver {_pairs(settings['versions'])}; "
            "install the same",
        )
    if Path(settings["cwd"]).is_dir():
        os.chdir(settings["cwd"])  # relative paths mean what they mean to the driver
    local_folder(root, patience=0.0)  # what the driver has changed since this worker's last task
    if not Run.exists(root):
        raise GudaError(
            "ray-folder-not-shared",
            f"{root} is not on node {socket.gethostname()}; every node must mount the same run folder",
        )
    run = Run.open(root)
    if task.done(run):
        return 0.0  # by a worker that died, or was lost sight of, after it had published
    if missing := _unseen(run, task.needs):
        raise GudaError(
            "ray-folder-not-shared",
            f"{run.path(missing)} is not on node {socket.gethostname()}; is the run folder shared?",
        )
    try:
        if task.trains and settings["processes"] > 1:
            return execute_multi_gpu(root, task, settings["processes"])
        return execute(root, task)
    except Exception:
        if task.done(run):  # two were at it, and the other one tidied up under this one's feet
            return 0.0
        raise


@cache
def _prepare(threads: int, environ: tuple[tuple[str, str], ...]) -> Any:
    """Once in a process, before torch is imported."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    os.environ.update(dict.fromkeys(names, str(threads)) | dict(environ))
    import torch

    torch.set_num_threads(threads)
    return importlib.import_module("threadpoolctl").threadpool_limits(threads)  # of what Ray imported before us


@cache
def _versions() -> dict[str, str]:
    """Library versions without build suffixes such as +cpu: two nodes must agree on these."""
    return {name: found.partition("+")[0] for name, found in library_versions().items()}


def _pairs(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {found}" for name, found in versions.items())


def _unseen(run: Run, files: tuple[str, ...]) -> str | None:
    """The first file that does not appear; the wait is for network file systems."""
    deadline = time.monotonic() + PATIENCE
    for file in files:
        while not run.has(file):
            if time.monotonic() > deadline:
                return file
            folder = run.path(file).parent
            os.listdir(folder if folder.is_dir() else run.root)  # reading a folder makes NFS look again
            time.sleep(1.0 if remote(run.address) else 0.1)
            run.refresh()
    return None
