"""Everything that runs on this machine without other services: an S3 server, `dagster dev`, the demo; and the search
for Java, for the YAML of sources, and for the units of systemd.
"""
