"""Will it run, and what will it cost: estimates, the doctor, a trial of a few steps, the largest batch."""
