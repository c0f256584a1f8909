raise RuntimeError("cold furnace")
