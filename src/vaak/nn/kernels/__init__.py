"""Kernels that mix tokens: softmax, local and linear attention, and which token may see which."""
