"""What this machine lends when nothing else is configured: an S3 server, a Java, demo data."""
