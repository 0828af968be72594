"""A small queue for background jobs: submit, run, retry, and report.

Try it: open this file in an editor that is connected to specengine-lsp, or run `specengine demo`.
"""

from __future__ import annotations

import heapq
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PENDING = "pending"
RUNNING = "running"
DONE = "done"
FAILED = "failed"


@dataclass(order=True)
class Job:
    """A unit of work; lower priorities run first."""

    priority: int
    number: int
    name: str = field(compare=False)
    payload: dict[str, str] = field(compare=False, default_factory=dict)
    state: str = field(compare=False, default=PENDING)
    attempts: int = field(compare=False, default=0)
    error: str = field(compare=False, default="")
    started_at: float = field(compare=False, default=0.0)
    finished_at: float = field(compare=False, default=0.0)

    def is_finished(self) -> bool:
        """Whether the job will not run again."""
        return self.state in (DONE, FAILED)

    def duration(self) -> float:
        """Return how long the job ran, in seconds."""
        return self.finished_at - self.started_at


class JobQueue:
    """Jobs waiting to run, most urgent first."""

    def __init__(self, max_attempts: int = 3) -> None:
        self.max_attempts = max_attempts
        self.jobs: dict[int, Job] = {}
        self.handlers: dict[str, Callable[[dict[str, str]], None]] = {}
        self._heap: list[Job] = []
        self._numbers = itertools.count(1)

    def register(self, name: str, handler: Callable[[dict[str, str]], None]) -> None:
        """Set the function that runs the jobs of a name."""
        if name in self.handlers:
            raise ValueError(f"a handler for {name} is registered already")
        self.handlers[name] = handler

    def submit(self, name: str, payload: dict[str, str], priority: int = 10) -> Job:
        """Add a job and return it."""
        if name not in self.handlers:
            raise KeyError(f"no handler for {name}")
        job = Job(priority, next(self._numbers), name, payload)
        self.jobs[job.number] = job
        heapq.heappush(self._heap, job)
        return job

    def run_next(self) -> Job | None:
        """Run the most urgent job and return it, or None if nothing waits."""
        if not self._heap:
            return None
        job = heapq.heappop(self._heap)
        job.state = RUNNING
        job.attempts += 1
        job.started_at = time.time()
        try:
            self.handlers[job.name](job.payload)
        except Exception as error:
            self._record_failure(job, error)
        else:
            job.state = DONE
        job.finished_at = time.time()
        return job

    def run_all(self) -> list[Job]:
        """Run jobs until none waits; return them in the order in which they ran."""
        finished = []
        while (job := self.run_next()) is not None:
            finished.append(job)
        return finished

    def pending_jobs(self) -> list[Job]:
        """Return the jobs that wait, most urgent first."""
        return sorted(job for job in self.jobs.values() if job.state == PENDING)

    def done_jobs(self) -> list[Job]:
        """Return the jobs that are done, most urgent first."""
        return sorted(job for job in self.jobs.values() if job.state == DONE)

    def failed_jobs(self) -> list[Job]:
        """Return the jobs that failed, most urgent first."""
        return sorted(job for job in self.jobs.values() if job.state == FAILED)

    def save(self, path: Path) -> None:
        """Write all jobs to a file."""
        rows = [
            {
                "number": job.number,
                "name": job.name,
                "priority": job.priority,
                "state": job.state,
                "attempts": job.attempts,
                "error": job.error,
            }
            for job in self.jobs.values()
        ]
        path.write_text(json.dumps(rows, indent=2), encoding="utf-8")

    def _record_failure(self, job: Job, error: Exception) -> None:
        job.error = str(error)
        if job.attempts < self.max_attempts:
            job.state = PENDING
            heapq.heappush(self._heap, job)
        else:
            job.state = FAILED


def summarize(queue: JobQueue) -> str:
    """Return one line that says how many jobs are in which state."""
    counts = {state: 0 for state in (PENDING, RUNNING, DONE, FAILED)}
    for job in queue.jobs.values():
        counts[job.state] += 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())
