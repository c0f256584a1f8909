"""Limits of claimed calls: the script that reserves messages and claims their calls has asked them."""

import structlog

from goondan_tasks.ledger.record import Verdict
from workers.delivery.delivery import Delivery
from workers.job import Job

logger = structlog.get_logger(__name__)


def note_verdict(delivery: Delivery, job: Job) -> bool:
    """Log why a reserved call is not run, and count its wait for a limit; return whether it is claimed."""
    if job.verdict is Verdict.RUN:
        return True
    if job.verdict is Verdict.TOLD:
        return False
    if not job.verdict.is_granted:
        logger.info("call.not_run", **job.log_fields.known(), verdict=str(job.verdict))
    if job.verdict is Verdict.WAITING:
        delivery.result_writer.counts.add_limit_wait(job.agent, job.tool_name)
    elif job.verdict is Verdict.LIMITED:
        logger.info("call.not_admitted", **job.log_fields.known(), verdict=str(job.verdict))
    return job.verdict.is_granted
