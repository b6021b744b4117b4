"""Adapters of DynamoDB tables: records, commit leases, and the table of xor-ack-dynamodb."""
