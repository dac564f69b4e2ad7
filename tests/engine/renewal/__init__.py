"""Renewals: when they are due, what their replies mean, overdue leases, outages."""
