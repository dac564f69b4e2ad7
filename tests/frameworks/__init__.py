"""The examples for frameworks, with the real packages, and real processes where those are the subject."""
