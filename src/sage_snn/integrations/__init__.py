"""The same policies inside other people's trainers; import the one you need."""
