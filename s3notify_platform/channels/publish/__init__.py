"""Writers: the publisher whose changes are announced in the notification queue before they are made."""
