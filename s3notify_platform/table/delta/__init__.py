"""The format of Delta's log: actions, checkpoints, statistics, deletion vectors. Pure."""
