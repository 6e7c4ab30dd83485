"""Coroutines of tests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def run_async(coroutine):
    """Run a coroutine in a thread: that of the tests may have the event loop of playwright."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
