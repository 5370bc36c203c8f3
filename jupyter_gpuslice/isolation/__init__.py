"""How a slice is made real in a process, and what of it this node can enforce."""
