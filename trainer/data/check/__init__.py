"""`mayfly data check`: what a folder of candles holds, what is wrong with it, and its safe repair."""
