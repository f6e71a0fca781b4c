"""The simulator: environments with a hidden regime, replays of policies on them, tables and figures."""
