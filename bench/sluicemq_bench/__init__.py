"""What `sluicemq bench` runs: producers and workers as processes of their own, and what they count."""
