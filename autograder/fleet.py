"""Grade many submissions: the same tasks on a local cluster in this command, or on a Dask cluster that is already there."""

import logging
import os
import time

import nbformat
from dask import config as dask_config
from distributed import Client, LocalCluster, as_completed

from autograder import judge
from autograder.rebuild import grade_id, is_graded


def grade_all(jobs, workers=None, scheduler=None):
    """Grade `jobs` and yield (job, verdict) as each is done.

    A task whose worker died is tried again by Dask; one that keeps dying becomes an `infrastructure_error`, which a later
    run of the same command tries again.

    Args:
        jobs: a list of `judge.Job`.
        workers: processes of the local cluster; by default one for each core.
        scheduler: address of a running Dask scheduler, whose workers see the class folder under the same path.
    """
    jobs = list(jobs)
    if not jobs:
        return
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    # The local workers are this command's own: no dashboard, no spilling, and the sandbox watches over memory.
    quiet = {"distributed.worker.memory.terminate": False, "distributed.worker.memory.pause": False,
             "distributed.worker.memory.spill": False, "distributed.worker.memory.target": False,
             "distributed.logging.distributed": "critical"}  # fmt: skip
    with dask_config.set(quiet):
        cluster = scheduler or LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL, host="127.0.0.1"
        )
        with Client(cluster) as client:
            futures = {client.submit(judge.grade, job, pure=False, retries=1): job for job in jobs}
            for future in as_completed(list(futures)):
                job = futures.pop(future)
                error = future.exception()
                yield job, future.result() if error is None else failed(job, error)
                future.release()
        if scheduler is None:
            cluster.close()


def failed(job, error):
    """The verdict of a job that our side could not finish: no zeros, and a reason."""
    master = nbformat.read(job.master, as_version=4)
    message = f"grading failed: {type(error).__name__}: {str(error)[:300]}"
    verdict = {
        "schema": judge.SCHEMA, "key": job.key, "assignment": job.assignment, "student": job.student,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": {}, "seed_id": judge.seed_id(job.seed),
        "rung": "gpu" if job.gpu else "cpu", "unsafe": job.unsafe, "flags": [message], "seconds": 0.0,
        "cells": {grade_id(c): judge.entry(c, "infrastructure_error", message) for c in master.cells if is_graded(c)},
    }  # fmt: skip
    judge.write(job.stem, verdict, master)
    return verdict
