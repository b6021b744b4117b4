"""Reads all bad objects of `poison`, and prints the maximum memory of this process in bytes."""

from pathlib import Path

import pyarrow as pa

from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import format_of
from s3notify_platform.spark.memory_limit import limit_memory
from tests.support.poison import SCHEMA
from tests.support.poison.files import FILES
from tests.support.poison.texts import TEXTS


def main() -> None:
    limit_memory()
    for name, make in {**TEXTS, **FILES}.items():
        form, body = format_of(name, "auto"), make()
        assert form is not None
        infer(form.schemas(BytesInMemory(body), name, "utf-8"))
        for inferred in (False, True):
            for rescue in (False, True):
                target = Target(schema=SCHEMA, inferred=inferred, rescue=rescue)
                for _ in form.parse([(name, body)], target):
                    pass
        pa.default_memory_pool().release_unused()  # else the peak depends on what the allocator has kept
    # ru_maxrss is not used, because it begins with the memory of the parent process.
    (peak,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    print(int(peak.split()[1]) << 10)


if __name__ == "__main__":
    main()
