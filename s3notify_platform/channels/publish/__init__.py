"""The publisher for writers: it announces its changes in the notification queue before it makes them."""
