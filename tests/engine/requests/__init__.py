"""Operations of callers: what is sent, retries, time limits, undoing."""
