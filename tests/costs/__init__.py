"""Tests of what renewals, acquires and releases cost, in counts; see measure.py and limits.py."""
