"""What stands in DynamoDB tables: records, commit leases, and the table of xor-ack."""
