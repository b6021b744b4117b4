"""The publisher for writers, which announces each change in the notification queue before it makes the change."""
