"""The command line `s3notify`. `main` lists the commands. A file has one command, or one group of subcommands."""
