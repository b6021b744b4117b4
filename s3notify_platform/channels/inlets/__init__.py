"""Inlets: changes that other systems report become entries of the queue, then signals.

A new inlet is one file and one entry in `channels.registry`. An inlet that receives S3's event messages copies
`sqs_inlet`: its settings, and a `ports.MessageQueue` (`receive`, `hide`, `delete`, `max_receives`). `queue_inlet` does
everything else.
"""
