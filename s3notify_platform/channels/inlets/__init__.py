"""Inlets: changes that other systems report become entries of the queue, then signals.

A new inlet is one file and one entry in `channels.registry`. If the inlet receives S3's event messages from a message
queue, take `sqs_inlet` as the model. `sqs_inlet` has only settings, and a `ports.MessageQueue` (`receive`, `hide`,
`delete`, `max_receives`). `pull_inlet` does everything else.
"""
