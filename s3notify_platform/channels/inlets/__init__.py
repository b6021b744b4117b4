"""Inlets: changes that others report become entries of the queue, then signals.

A new inlet is one file and one entry in `channels.registry`. One that receives S3's event messages copies `sqs_inlet`:
its settings, and a `ports.MessageQueue` (`receive`, `hide`, `delete`, `max_receives`); `queue_inlet` does the rest.
"""
