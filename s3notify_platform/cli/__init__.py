"""`s3notify`: the command line. `main` has the list of commands; each is one file."""
