"""Ways for changes into the notification queue, and out of it. Each that runs for long is a `Service`.

In: `sqs` and `receiver` (over `http1`) take in what others report, by one `intake`; what makes no sense is `poison`.
"""
