"""The settings of a broker, from file, environment and command line."""
