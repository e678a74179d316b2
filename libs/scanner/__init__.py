"""The one secret scanner of everything that leaves: commits, pull requests, comments, mail. It says where and of what kind, never what."""

from libs.scanner.scanner import Finding, describe, scan, scan_diff

__all__ = ["Finding", "describe", "scan", "scan_diff"]
