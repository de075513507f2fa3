"""The processes of a run: ranks.py is the only file that knows torch.distributed."""
