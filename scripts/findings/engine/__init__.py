"""Engines: probing a build, translating an arm into its words, running a server, talking to it, naming its failures."""
