"""What comes in and goes out: plain frames, SMQ/1, REP, PULL and PUSH doors."""
