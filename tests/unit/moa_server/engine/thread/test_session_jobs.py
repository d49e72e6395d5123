from __future__ import annotations

from unittest.mock import create_autospec

import pytest
from moa_server.engine.inference_thread import InferenceThread, SessionJobs, SessionLosses
from moa_shared.errors import InternalError


def test_a_job_before_the_start_is_a_defect() -> None:
    jobs = SessionJobs(create_autospec(InferenceThread, instance=True), create_autospec(SessionLosses, instance=True))
    with pytest.raises(InternalError):
        jobs.post(print)
