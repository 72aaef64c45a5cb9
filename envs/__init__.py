"""Tasks, tools and simulators: what a language-model agent acts in."""
