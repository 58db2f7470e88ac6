"""The three devices: STREAMER, QUEUE and FORWARDER."""
