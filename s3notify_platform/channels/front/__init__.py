"""The REST front: topics and bucket notifications as S3's, SNS's and Ceph's clients speak of them, on any store.

`notification_front` is the service and has the table of what it answers, `sigv4` believes or refuses a request,
`sns_topics` and `s3_configurations` map requests onto topics and their rules: there is no second model.
"""
