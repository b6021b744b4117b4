"""The demo's source, which `s3notify demo` loads."""
