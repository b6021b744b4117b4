"""Writers: the publisher that announces its changes in the notification queue before it makes them."""
