"""Engines on another machine over ssh: the connection, models there, what the machine is, the server and its watch."""
