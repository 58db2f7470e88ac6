"""What every part of the broker needs: time, counters, batches, turns of the hub."""
