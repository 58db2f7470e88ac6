"""The command `sluicemq bench`: producers and workers as processes of their own, and their counts."""
