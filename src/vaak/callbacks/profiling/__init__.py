"""Where the time of training goes: shares by phase, and traces of torch's profiler."""
