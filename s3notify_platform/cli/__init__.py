"""The command line `s3notify`. `main` lists the commands; each command is one file."""
