"""Makes pytest explain failed assertions of the shared suite."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.contract.segment_log")
