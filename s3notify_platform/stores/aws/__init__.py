"""Services of AWS that a bucket's events pass through: requests to them, and the bucket's notifications."""
