WORD = "first"
