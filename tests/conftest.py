"""Profiles of the tests, and the shared fixtures of `tests/support`."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("quick", max_examples=10, deadline=None, derandomize=True)
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("check", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=300, deadline=None, derandomize=True)
settings.register_profile(
    "nightly", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# These variables are set before any Java starts, because Java gives its environment to its processes.
os.environ.update({"S3NOTIFY_TEST_KEY": "test", "S3NOTIFY_TEST_SECRET": "test"})

# The library readline sets this variable in the workers of xdist. Commands would wrap the lines that tests read.
os.environ.pop("COLUMNS", None)

pytest_plugins = [
    "tests.support.briefly_known",
    "tests.support.browser",
    "tests.support.durations",
    "tests.support.moto",
    "tests.support.servers",
    "tests.support.spark_session",
    "tests.support.xor_ack_peer",
]
