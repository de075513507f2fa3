"""A run's files compared with each other, without computing anything: the first part of ``vaak verify``."""
