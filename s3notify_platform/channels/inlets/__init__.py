"""Inlets: changes that other systems report become entries of the queue, then signals.

A new inlet is one file and one entry in `channels.registry`. `tests/support/toy_inlet.py` is a complete example: an
inlet for a message queue with S3's event messages. The settings of this inlet derive from
`pull_inlet.PullInletSettings`. The settings' method `messages` makes the inlet's `ports.MessageQueue`, which has
`batch_size`, `receive`, `hide`, `delete` and `max_receives`. `pull_inlet` does everything else: the loop, retries,
poison and options of the command line. `sqs_inlet` is a real inlet of this kind; the adapter of its message service is
`stores/sqs.py`. `http_inlet` is an inlet that receives requests.
"""
