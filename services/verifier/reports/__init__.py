"""Test reports: what each runner prints, read into one shape."""

from services.verifier.reports.models import TestCounts, TestReport
from services.verifier.reports.parse import parse_report

__all__ = ["TestCounts", "TestReport", "parse_report"]
