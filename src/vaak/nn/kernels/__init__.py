"""What mixes tokens: softmax, local and linear attention, and which token may see which."""
