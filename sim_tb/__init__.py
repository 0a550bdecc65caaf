"""Testbenches of the whole NIC under cocotb: drivers, scoreboard, stimuli, a codec of their own."""
