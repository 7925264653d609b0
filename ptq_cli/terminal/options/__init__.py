"""Options of the commands: each is defined once, under the heading that help shows it under.

What may enter: an option, and how its value is parsed. ``shared_options`` turns all options into settings,
``settings_as_options`` knows which of them are typed as options.
"""
