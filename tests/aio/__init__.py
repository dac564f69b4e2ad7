"""The face for asyncio, on asyncio's own event loop and on uvloop's."""
