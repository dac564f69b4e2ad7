"""Renewals: one renewer for each node turns due leases into batches, and retries what is overdue until it is lost.

No operations of callers here.
"""
