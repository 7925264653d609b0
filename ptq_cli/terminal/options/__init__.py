"""Options of the commands: each is defined once, under the heading that help shows it under.

What may enter: an option, how its value is parsed, and what a shell completes for it. ``shared_options``
turns all options into settings.
"""
