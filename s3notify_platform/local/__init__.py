"""Everything that runs on this machine without other services: an S3 server, `dagster dev` and the demo. Other modules
find Java, read the YAML of sources, and make the units of systemd.
"""
